/* A deliberate error (a wrong structure type) that the Khronos validation layer must
   report: the proof that .ci/run would see one of the crate's. */
#include <stdint.h>

struct create_info {
    int32_t type; /* VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO would be 1 */
    const void *next;
    uint32_t flags;
    const void *application;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
};

int32_t vkCreateInstance(const struct create_info *, const void *allocator, void **instance);

int main(void) {
    struct create_info info = {.type = 2};
    void *instance;
    return vkCreateInstance(&info, 0, &instance) != 0;
}
