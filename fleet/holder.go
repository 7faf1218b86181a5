package fleet

// Holder is the dense id of a (worker, data-parallel rank) whose cache the index knows. Ids start at 0, are given by a
// [Fleet] in order of first sight of (worker URL, rank), and are never given to another pair while the process lives.
type Holder uint32

// NoHolder is the id of no holder.
const NoHolder = Holder(^uint32(0))
