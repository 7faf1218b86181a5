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
	// Seen: the response told its usage. When it told it several times (continuous_usage_stats) the last one counts.
	Seen bool
}

// Watcher reads a response as it passes, split anywhere, and remembers what it says about itself. It allocates nothing
// and its memory does not grow with the response. It is an observer: a response that is not JSON is not an error, it
// only tells nothing. Call Reset before the first response. Not safe for concurrent use.
type Watcher struct {
	format Format
	json   document
	lines  eventLines
	plain  plainEvent
	failed bool // an event that tells an error is whole
	pieces int  // events that brought a part of the answer
	events int  // events with data
	begun  bool // the first of them was a whole document with a list of choices
}

// Reset makes w ready for a new response.
func (w *Watcher) Reset(d Dialect, f Format) {
	w.format = f
	w.json.reset(dialects[d].watch)
	w.lines = eventLines{}
	w.failed, w.pieces, w.events, w.begun = false, 0, 0, false
	w.plain.prefixLen, w.plain.suffixLen = 0, 0
}

// Feed reads the next piece of the response. For an event stream it returns the offset in chunk behind the last event
// that is whole: what comes behind is the beginning of an event, which may never become whole. It stops behind an event
// that tells an error: Failed is true then, whole is the offset behind that event, and what follows has not been read.
// For JSON it always returns len(chunk).
func (w *Watcher) Feed(chunk []byte) (whole int) {
	if w.format == JSON {
		w.json.feed(chunk, 0)
		return len(chunk)
	}
	return w.feedEvents(chunk)
}

// End tells w that the response is over: a last line without its line end counts too.
func (w *Watcher) End() {
	if w.format == EventStream {
		w.lines.end()
	}
	w.json.endScalar()
	w.failed = w.json.failed
}

// FirstToken reports whether a generated token has been seen: content, reasoning, a tool call or token ids, but not the
// role alone.
func (w *Watcher) FirstToken() bool { return w.json.token }

// Tokens returns how many tokens of the answer have passed: what the usage says, else one for each event that brought a
// part of the answer, which engines send at every step. Of an answer that is not streamed it is known at the end only.
func (w *Watcher) Tokens() int { return max(w.pieces, w.json.usage.Completion) }

// Finished reports whether the generation came to its end: every choice that was seen has had its finish_reason, and
// there was at least one. A choice that never began cannot be missed: engines differ in whether they honour n.
func (w *Watcher) Finished() bool { return w.json.choices.finished() }

// Failed reports whether the response carried an error, in an event that is whole or as its body.
func (w *Watcher) Failed() bool {
	if w.format == JSON {
		return w.json.failed
	}
	return w.failed
}

// ErrorText returns the beginning of the error's message, still escaped as in JSON, for a log. It is empty when there
// was no error or no message.
func (w *Watcher) ErrorText() string { return string(w.json.message[:w.json.messageLen]) }

// ErrorCode returns the error's code where it is a number, else 0. Engines put there the status that they would have
// answered with.
func (w *Watcher) ErrorCode() int { return w.json.code }

// Answers reports whether the bytes fed so far have the shape of an answer: a document with a list of choices. In a
// stream only the first event with data counts, and it must be whole.
func (w *Watcher) Answers() bool {
	if w.format == JSON {
		return w.json.answers
	}
	return w.begun
}

// Events returns the number of whole events with data, [DONE] included.
func (w *Watcher) Events() int { return w.events }

// Model returns the model that the answer names. It is nil when the answer names no model, a long one, or one with
// escapes. It is valid until Reset.
func (w *Watcher) Model() []byte { return w.json.model[:w.json.modelLen] }

// Done reports whether [DONE] was seen.
func (w *Watcher) Done() bool { return w.lines.done }

// Complete reports whether all that was fed is a whole, successful generation: finished, for no reason of the engine's
// own (abort, error), without an error, and in one piece (for JSON: the document is closed, and every choice has a
// message or a text). A clean end or [DONE] alone prove nothing: a vLLM whose engine died sends an error event, then
// [DONE], and ends cleanly (../shared/facts/stream_survival.md §1).
func (w *Watcher) Complete() bool {
	if !w.Finished() || w.json.failed || w.json.aborted {
		return false
	}
	return w.format == EventStream || w.Whole() && !w.json.hollow
}

// Whole reports whether the bytes fed are one JSON object with nothing before or after it. It looks at brackets and
// quotes only.
func (w *Watcher) Whole() bool { return w.json.closed && !w.json.broken }

// Broken reports whether the bytes fed cannot be one JSON object, whatever follows. It says nothing of event streams.
func (w *Watcher) Broken() bool { return w.format == JSON && w.json.broken }

// Usage returns the last usage seen.
func (w *Watcher) Usage() Usage { return w.json.usage }
