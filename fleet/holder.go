package fleet

// Holder is the id of one data-parallel rank of a worker, as the owner of one KV cache. Ids are dense and start at 0. A
// [Fleet] assigns them when it first sees a pair of worker and rank. It assigns an id to another pair only after
// [Fleet.Retire] and [Fleet.Reuse].
type Holder uint32

// NoHolder is the id of no holder.
const NoHolder = Holder(^uint32(0))
