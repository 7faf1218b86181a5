package fleet

// Holder is the dense id of a (worker, data-parallel rank) whose cache the index knows. Ids start at 0. A [Fleet]
// assigns them when it first sees a pair of worker URL and rank. It assigns an id to another pair only after
// [Fleet.Retire] and [Fleet.Reuse].
type Holder uint32

// NoHolder is the id of no holder.
const NoHolder = Holder(^uint32(0))
