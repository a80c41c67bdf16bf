# The multiply-add loops of an assembly listing of AMD's: "BBn:" labels, branches
# "s_cbranch_... BBn". A loop is what lies between a label and a later branch back to
# it; the multiply-add loops are the innermost ones that hold at least 16 multiply-adds.
# Prints "RATIO | SHARE %" of the loop that is worst in each; with -v all=1 every loop.

{ sub(/ *;.*/, "") }
/^BB[0-9]+:/ { label = $1; sub(/:/, "", label); at[label] = NR; next }
{
    mad[NR] = /^\t? *v_(fma|fmac|mac|mad|dual_fmac)_/
    vector[NR] = /^\t? *v_/
    memory[NR] = /^\t? *(ds_|buffer_|global_|flat_|scratch_)/
}
/s_c?branch/ && ($NF in at) { n++; first[n] = at[$NF]; last[n] = NR }

function total(kind, i,    line, sum) {
    for (line = first[i]; line <= last[i]; line++) sum += kind[line]
    return sum + 0
}

END {
    for (i = 1; i <= n; i++) mads[i] = total(mad, i)
    for (i = 1; i <= n; i++) {
        inner = mads[i] >= 16
        for (k = 1; k <= n; k++)
            if (k != i && first[k] >= first[i] && last[k] <= last[i] && mads[k] >= 16 && \
                !(first[k] == first[i] && last[k] == last[i])) inner = 0
        if (!inner) continue
        found++
        ratio = mads[i] / (total(memory, i) > 0 ? total(memory, i) : 1)
        share = 100 * mads[i] / total(vector, i)
        if (all) printf "%d multiply-adds, %d memory, %d vector\n", mads[i], total(memory, i), total(vector, i)
        if (found == 1 || ratio < worst_ratio) worst_ratio = ratio
        if (found == 1 || share < worst_share) worst_share = share
    }
    if (!found) { print "no multiply-add loop" > "/dev/stderr"; exit 1 }
    if (!all) printf "%.1f | %d %%", worst_ratio, worst_share
}
