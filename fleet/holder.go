package fleet

// Holder is the dense id of a (worker, data-parallel rank) whose cache the index knows. Ids start at 0, and a [Fleet]
// gives them in order of first sight of (worker URL, rank). An id is given to another pair only after [Fleet.Retire] and
// [Fleet.Reuse].
type Holder uint32

// NoHolder is the id of no holder.
const NoHolder = Holder(^uint32(0))
