package api

// Format says how a response is framed.
type Format uint8

const (
	// JSON: one JSON document.
	JSON Format = iota
	// EventStream: server-sent events, each with a JSON document or [DONE].
	EventStream
)

// Usage is what the engine says that a request cost, in tokens.
type Usage struct {
	Prompt     int
	Completion int
	// Cached is prompt_tokens_details.cached_tokens. HasCached is false when the engine does not say: SGLang and vLLM
	// before 0.24 leave out a zero, and either needs a flag to tell it at all.
	Cached    int
	HasCached bool
	// Seen: the response told its usage.
	Seen bool
}

// Watcher reads a response as it passes, split anywhere. PLACEHOLDER
type Watcher struct {
	usage Usage
}

// Reset makes w ready for a new response.
func (w *Watcher) Reset(d Dialect, f Format) {}

// Feed reads the next piece.
func (w *Watcher) Feed(chunk []byte) {}

// FirstToken: a token has been seen.
func (w *Watcher) FirstToken() bool { return false }

// Finished: every choice seen has its finish_reason, and there was at least one.
func (w *Watcher) Finished() bool { return false }

// Failed: the response carried an error.
func (w *Watcher) Failed() bool { return false }

// Done: [DONE] was seen.
func (w *Watcher) Done() bool { return false }

// Usage returns the last usage seen.
func (w *Watcher) Usage() Usage { return w.usage }
