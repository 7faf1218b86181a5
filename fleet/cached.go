package fleet

// Cached is what an external source, such as the controller of a shared cache, knows about one worker's cache.
type Cached struct {
	Worker WorkerID
	Tokens int   // how many tokens of the prompt's beginning the worker has cached
	Keys   int64 // how many chunks the worker has cached in all
}
