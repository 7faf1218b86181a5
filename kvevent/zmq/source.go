package zmq

import (
	"time"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// Source says where one holder's events come from.
type Source struct {
	// Endpoint is the engine's PUB socket: "tcp://host:port" or "ipc://path". It is dialled.
	Endpoint string
	// Replay is the engine's ROUTER socket, which repeats buffered messages. Empty: there is none, so whatever is
	// missed is lost.
	Replay string
	// Topic is the prefix to subscribe to. Empty: every message.
	Topic string
}

// Handler receives one stream. Its methods are called one at a time, in order, while Run runs and never after it has
// returned; they may block, which slows the stream down and, if it lasts, makes the engine drop messages (seen as a
// gap). They must not wait for Run to return.
type Handler interface {
	// Message is the next message of the stream. Sequence numbers follow each other without gap, except as told by
	// Restarted and Lost. payload is valid only during the call.
	Message(seq uint64, payload []byte)
	// Restarted says that the engine's stream began anew: forget everything known of this holder. The new stream
	// follows from sequence number 0, or from where a Lost(0, n) says.
	Restarted(why string)
	// Lost says that messages [from, to) are gone for good: the history is incomplete from here on, so forget and learn
	// anew. to equals from when how many are missing is not known (a disconnect without a replay endpoint).
	Lost(from, to uint64)
	// Complete says that the history is whole from sequence number 0 up to now. It is repeated after each reconnect and
	// each filled gap.
	Complete()
	// State says that the connection to Endpoint came up, went down, or could not be made. err is nil when connected.
	State(connected bool, err error)
}

// Unnumbered is an optional ability of a [Handler].
type Unnumbered interface {
	// Unnumbered says that the following messages carry no sequence numbers: the numbers given to Message are only a
	// count. Lost messages go unnoticed, and nothing can be replayed. It is called once on each such connection,
	// after Lost and before the first message; Complete is not called.
	Unnumbered()
}

// CatchUp is an optional ability of a [Handler].
type CatchUp interface {
	// Behind says whether messages of the engine are missing at the moment, or may be: on a new connection, and from
	// the moment a gap is seen. Before that, every message published so far had been handed over. While the stream is
	// behind, later messages are kept back, and blocks that they remove still count as cached. Behind(false) and
	// Complete end it.
	Behind(behind bool)
}

// Config bounds a Subscriber or a Listener. The zero value of a field means the value in DefaultConfig.
type Config struct {
	// ReplayTimeout is how long a replay may stay silent before it counts as ended without its end marker.
	ReplayTimeout time.Duration
	// ReplayPause is the same once its first message has come: an engine writes a replay in one go, so that a pause
	// means that the rest, with its end marker, was lost.
	ReplayPause time.Duration
	// ReplayTries is how often in a row a replay may bring nothing new before what is missing is given up as lost.
	ReplayTries int
	// ReplayTime bounds one recovery as a whole, however many replays it takes, as long as it brings nothing new.
	ReplayTime time.Duration
	// RecoveryTime bounds one recovery as a whole, also while it brings something new. Then the missing messages are
	// given up as lost.
	RecoveryTime time.Duration
	// Verify is the time between two checks of the stream's end against the replay, which find a last message that was
	// dropped and a restart that went unseen. Negative: never.
	Verify time.Duration
	// PendingMessages and PendingBytes bound the messages kept while older ones are being replayed. Live messages over
	// the bound are not kept but replayed later.
	PendingMessages int
	PendingBytes    int
	// HeartbeatInterval is the silence after which the engine is asked for a sign of life, and HeartbeatTimeout how
	// long it may take to answer before the connection is dropped. HeartbeatInterval negative: never ask.
	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	// MaxMessage is the largest message accepted, in bytes, over all its frames.
	MaxMessage int
	// MaxStreams bounds the streams a Listener follows at a time.
	MaxStreams int
	// BackoffMin and BackoffMax are the first and the longest pause between two attempts to connect.
	BackoffMin time.Duration
	BackoffMax time.Duration
	// Network is the network on which engines are dialled or listened for; nil means the machine's.
	Network network.Network
}

// DefaultConfig is used where a field of Config is zero.
var DefaultConfig = Config{
	// A vLLM publisher looks for replay requests every 100 ms when idle and between batches when busy.
	ReplayTimeout: 3 * time.Second,
	// Half a second is long beside the microseconds between two messages of a replay, and short when twenty asks are
	// needed.
	ReplayPause: 500 * time.Millisecond,
	// A replay over its ROUTER's send limit loses its tail, and the next try brings more; twenty fruitless tries find
	// one message even when 70 % of a replay are lost (0.7^20 < 0.1 %).
	ReplayTries: 20,
	ReplayTime:  20 * time.Second,
	// The 10,000 messages that an engine keeps take seconds, even where most of each replay is lost. A replay that
	// takes longer is sent slowly on purpose, or the engine publishes faster than its replay socket repeats.
	RecoveryTime: time.Minute,
	Verify:       10 * time.Second,
	// vLLM keeps 10,000 batches; a batch is some kilobytes.
	PendingMessages:   20_000,
	PendingBytes:      64 << 20,
	HeartbeatInterval: 5 * time.Second,
	HeartbeatTimeout:  10 * time.Second,
	// A 1 M token prompt stored in one step is some 5 MB.
	MaxMessage: 64 << 20,
	MaxStreams: 4096,
	// libzmq's reconnect interval is 100 ms; the bound keeps a fleet's return quick and its absence cheap.
	BackoffMin: 100 * time.Millisecond,
	BackoffMax: 2 * time.Second,
}

// withDefaults fills the zero fields.
func (c Config) withDefaults() Config {
	d := DefaultConfig
	setDefault(&c.ReplayTimeout, d.ReplayTimeout)
	setDefault(&c.ReplayPause, d.ReplayPause)
	setDefault(&c.ReplayTries, d.ReplayTries)
	setDefault(&c.ReplayTime, d.ReplayTime)
	setDefault(&c.RecoveryTime, d.RecoveryTime)
	setDefault(&c.Verify, d.Verify)
	setDefault(&c.PendingMessages, d.PendingMessages)
	setDefault(&c.PendingBytes, d.PendingBytes)
	setDefault(&c.HeartbeatInterval, d.HeartbeatInterval)
	setDefault(&c.HeartbeatTimeout, d.HeartbeatTimeout)
	setDefault(&c.MaxMessage, d.MaxMessage)
	setDefault(&c.MaxStreams, d.MaxStreams)
	setDefault(&c.BackoffMin, d.BackoffMin)
	setDefault(&c.BackoffMax, d.BackoffMax)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// socket returns the settings of a SUB socket.
func (c Config) socket() zmtp.Config {
	return zmtp.Config{
		HeartbeatInterval: c.HeartbeatInterval,
		HeartbeatTimeout:  c.HeartbeatTimeout,
		MaxFrame:          c.MaxMessage,
		MaxParts:          8,
		MaxPeers:          c.MaxStreams,
		BackoffMin:        c.BackoffMin,
		BackoffMax:        c.BackoffMax,
		Network:           c.Network,
	}
}

// Stats is a snapshot of one stream's counters since Run began.
type Stats struct {
	Connected  bool
	Since      time.Time // when Connected last changed; zero before the first change
	LastSeq    uint64    // of the last message handed over; meaningful when HasSeq
	HasSeq     bool
	Messages   uint64 // handed over, live or replayed
	Gaps       uint64 // times the live stream jumped ahead
	Replays    uint64 // replay requests sent for messages that were missing
	Checks     uint64 // replay requests sent to see whether something is missing
	Replayed   uint64 // messages that replays brought and that were handed over
	Duplicates uint64 // messages seen again, not handed over
	Lost       uint64 // messages given up
	Restarts   uint64 // streams that began anew
	Malformed  uint64 // messages that are not topic, sequence number and payload, nor topic and payload
	Overflows  uint64 // live messages not kept because the pending bound was hit (to be replayed)
}
