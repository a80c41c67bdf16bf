# The multiply-add loops of an assembly listing of AMD's: "BBn:" labels, branches
# "s_cbranch_... BBn". A loop is what lies between a label and a later branch back to
# it; the multiply-add loops are the innermost ones that hold at least 16 multiply-adds.
# Those with a select for each multiply-add are the edge tiles', which mask.
#
# Prints multiply-adds for each instruction that reads or writes workgroup memory or
# memory, and their share of the vector instructions, in the worst loop of interior
# and of edge tiles: "RATIO | SHARE % | RATIO, SHARE %". With -v all=1 every loop.

{ sub(/ *;.*/, "") }
/^BB[0-9]+:/ { label = $1; sub(/:/, "", label); at[label] = NR; next }
{
    mad[NR] = /^\t? *v_(fma|fmac|mac|mad|dual_fmac)_/
    pick[NR] = /^\t? *v_cndmask_/
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
            if (first[k] >= first[i] && last[k] <= last[i] && mads[k] >= 16 && \
                (first[k] > first[i] || last[k] < last[i])) inner = 0
        if (!inner) continue
        edge = total(pick, i) >= mads[i]
        loads = total(memory, i)
        ratio = loads ? mads[i] / loads : mads[i]
        share = 100 * mads[i] / total(vector, i)
        if (all)
            printf "%s: %d multiply-adds, %d memory, %d vector\n", edge ? "edge" : "interior", mads[i], loads, total(vector, i)
        if (!(edge in found) || ratio < worst_ratio[edge]) worst_ratio[edge] = ratio
        if (!(edge in found) || share < worst_share[edge]) worst_share[edge] = share
        found[edge]
    }
    if (!(0 in found)) { print "no multiply-add loop" > "/dev/stderr"; exit 1 }
    if (all) exit
    printf "%.1f | %d %%", worst_ratio[0], worst_share[0]
    if (1 in found) printf " | %.1f, %d %%", worst_ratio[1], worst_share[1]
    else printf " | "
}
