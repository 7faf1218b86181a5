package api

// Format says how a response is framed.
type Format uint8

const (
	// JSON: one JSON document.
	JSON Format = iota
	// EventStream: server-sent events, each with a JSON document or [DONE].
	EventStream
)

// Usage is the usage that the engine reports, in tokens.
type Usage struct {
	Prompt     int
	Completion int
	// Cached is prompt_tokens_details.cached_tokens. HasCached is false when the engine leaves out cached_tokens.
	// SGLang, and vLLM before 0.24, leave out a zero. Both engines need a flag to report cached_tokens at all.
	Cached    int
	HasCached bool
	// Seen: the response has a usage. If the response has several usages (continuous_usage_stats), the last usage
	// counts.
	Seen bool
}

// Watcher reads a response while the response is forwarded, in pieces that may be split at any byte. It collects what
// the router needs to know about the response. It allocates nothing, and its memory does not grow with the response. A
// response that is not JSON is no error: the Watcher learns nothing from it. Call Reset before the first response. A
// Watcher is not safe for concurrent use.
type Watcher struct {
	format Format
	json   document
	lines  eventLines
	last   contentEvent
	failed bool // a complete event had an error
	pieces int  // number of events with a part of the answer
	events int  // number of events with data
	begun  bool // the first event with data was a complete document that is a part of an answer; see Answers
}

// Reset prepares w for a new response.
func (w *Watcher) Reset(d Dialect, f Format) {
	w.format = f
	w.json.reset(dialects[d])
	w.lines = eventLines{}
	w.failed, w.pieces, w.events, w.begun = false, 0, 0, false
	w.last.prefixLen, w.last.suffixLen = 0, 0
}

// Feed reads the next piece of the response. For an event stream, whole is the offset in chunk at which the last
// complete event ends. The rest of chunk is the beginning of an event, which may never be completed. After an event
// with an error, Feed stops: Failed returns true, whole is the offset at which that event ends, and the rest is not
// read. For JSON, Feed always returns len(chunk).
func (w *Watcher) Feed(chunk []byte) (whole int) {
	if w.format == JSON {
		w.json.feed(chunk, 0)
		return len(chunk)
	}
	return w.feedEvents(chunk)
}

// End ends the response. A last line counts as complete even if its line end is missing.
func (w *Watcher) End() {
	if w.format == EventStream {
		w.lines.end()
	}
	w.json.endScalar()
	w.failed = w.json.failed
}

// FirstToken reports whether a generated token was seen: content, reasoning, a tool call or token ids. The role alone
// does not count as a token.
func (w *Watcher) FirstToken() bool { return w.json.token }

// Tokens returns the number of tokens of the answer that have come so far. It is the larger of the count in the usage
// and the number of events with a part of the answer, because engines send an event at every step. If the answer is not
// streamed, the number is known only at the end.
func (w *Watcher) Tokens() int {
	return max(w.pieces, w.json.usage.Completion+w.json.before.Completion)
}

// Finished reports whether the answer came to its end. For a generation with choices, there was at least one choice,
// and every choice that was seen has its finish_reason. A choice that never began does not count as missing, because
// some engines ignore n.
func (w *Watcher) Finished() bool {
	switch w.json.of.ends {
	case byChoices:
		return w.json.choices.finished()
	case byKind:
		return w.json.ended || w.format == JSON && w.Whole()
	case byShape:
		return w.Whole()
	}
	return true
}

// Failed reports whether the response has an error, in a complete event or as its body.
func (w *Watcher) Failed() bool {
	if w.format == JSON {
		return w.json.failed
	}
	return w.failed
}

// ErrorText returns the beginning of the error's message for a log, with its JSON escapes. The text is empty when there
// was no error or no message.
func (w *Watcher) ErrorText() string { return string(w.json.message[:w.json.messageLen]) }

// ErrorCode returns the error's code if it is a number, else 0. Engines use the status of the error as its code.
func (w *Watcher) ErrorCode() int { return w.json.code }

// Answers reports whether the bytes so far have the form of an answer of the dialect: a list of choices, a type such as
// message_start, or another key that errors do not have. In a stream only the first event with data counts, and this
// event must be complete.
func (w *Watcher) Answers() bool {
	if w.format == JSON {
		return w.json.answers
	}
	return w.begun
}

// Events returns the number of complete events with data, including [DONE].
func (w *Watcher) Events() int { return w.events }

// Model returns the model that the answer names. The result is empty when the answer names no model, or when the name
// is over 256 bytes or has escapes. The result is valid until Reset.
func (w *Watcher) Model() []byte { return w.json.model[:w.json.modelLen] }

// ID returns the id under which the engine keeps the answer, empty if the dialect's answers have none. The result is
// valid until Reset.
func (w *Watcher) ID() []byte { return w.json.id[:w.json.idLen] }

// Done reports whether the end of the stream was seen: [DONE], or the last event of a dialect without [DONE].
func (w *Watcher) Done() bool { return w.lines.done || w.json.of.ends == byKind && w.json.ended }

// Complete reports whether the response is a complete and successful generation. The response must be finished and have
// no error, and no choice may have ended for a reason of the engine (abort, error). A JSON document must also be
// closed, with a message or a text in every choice. A clean end or [DONE] alone proves nothing: when vLLM's EngineCore
// dies, the API server sends an error event, then [DONE], and ends the response cleanly (measured with vLLM 0.32.0).
func (w *Watcher) Complete() bool {
	d := &w.json
	if !w.Finished() || d.failed || d.aborted {
		return false
	}
	switch d.of.ends {
	case byChoices:
		return w.format == EventStream || w.Whole() && !d.hollow
	case byKind:
		return (w.format == EventStream || d.answers) && (d.last || !d.of.split)
	case byShape:
		return d.answers
	}
	return true
}

// Whole reports whether the bytes so far are exactly one JSON object, or an array where the dialect has arrays. It
// checks only brackets and quotes.
func (w *Watcher) Whole() bool { return w.json.closed && !w.json.broken }

// Broken reports whether the bytes so far cannot become one JSON object. Broken always returns false for event streams.
func (w *Watcher) Broken() bool { return w.format == JSON && w.json.broken }

// Usage returns the last usage that was seen. If an answer is a list, it is the sum over the elements.
func (w *Watcher) Usage() Usage {
	u := w.json.usage
	if w.json.of.split {
		u.Prompt += u.Cached + w.json.created
	}
	u.Prompt += w.json.before.Prompt
	u.Completion += w.json.before.Completion
	u.Cached += w.json.before.Cached
	return u
}
