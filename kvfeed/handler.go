package kvfeed

// Handler receives the messages of one event stream. Its methods are called one at a time, in order, and never after
// Run has returned. A method may block, which slows the stream down. If it blocks for long, the engine drops messages,
// and the stream has a gap. A method must not wait for Run to return.
type Handler interface {
	// Message receives the next message of the stream. Sequence numbers have no gap except those that Restarted and Lost
	// report. payload is valid only during the call.
	Message(seq uint64, payload []byte)
	// Restarted reports that the engine's stream began again: the handler forgets all that it knows of this engine. The
	// new stream begins with sequence number 0, or with n after Lost(0, n).
	Restarted(why string)
	// Lost reports that the messages with the sequence numbers [from, to) are lost. The lost messages may have removed any
	// block. So the handler forgets all that it knows of the engine, and learns again from the following messages. If the
	// number of lost messages is unknown, for example after a disconnect from an engine without a replay endpoint, from
	// and to are equal.
	Lost(from, to uint64)
	// Behind(true) reports that messages are missing or may be missing: on a new connection, and when a gap is seen.
	// While the stream is behind, later messages are kept back. So blocks that these messages remove still count as
	// cached. Behind(false) or Complete ends this state.
	Behind(behind bool)
	// Complete reports that the history is whole: every message from sequence number 0 on was received. It is called
	// again after each reconnect and each filled gap.
	Complete()
	// Unnumbered reports that the following messages carry no sequence numbers: Message then gets a count of the messages
	// as seq. Without numbers the stream cannot notice lost messages, nothing is replayed, and Complete is not called. On
	// each such connection Unnumbered is called once, after Lost and before the first message.
	Unnumbered()
	// State reports that the connection was made (err is nil), was lost, or could not be made.
	State(connected bool, err error)
}
