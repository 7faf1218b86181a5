package kvfeed

import (
	"context"
	"net"
	"time"

	"github.com/warmpath/warmpath/internal/zmtp"
)

// StreamConfig has the settings of one stream. A field with the zero value means its value in [DefaultStreamConfig].
type StreamConfig struct {
	// ReplayTimeout is the silence after which a replay counts as ended without its end marker.
	ReplayTimeout time.Duration
	// ReplayPause is the limit that replaces ReplayTimeout after the first message of a replay. An engine writes a
	// replay without a pause. So a pause means that the rest was lost, with the end marker.
	ReplayPause time.Duration
	// ReplayTries is the number of successive replays without a new message after which the missing messages are given
	// up as lost.
	ReplayTries int
	// ReplayTime is how long the replays of a recovery may bring nothing new. After this time, the missing messages are
	// given up as lost.
	ReplayTime time.Duration
	// RecoveryTime bounds the duration of any recovery. After it, the missing messages are given up as lost.
	RecoveryTime time.Duration
	// Verify is the time between two checks of an idle stream. A check requests a replay of the last messages. It shows
	// whether the last message was dropped, or the engine restarted unnoticed. Negative: only one check after each
	// recovery.
	Verify time.Duration
	// PendingMessages and PendingBytes bound the messages that are kept while older messages are replayed. Live
	// messages beyond the bound are dropped, and a later replay brings them.
	PendingMessages int
	PendingBytes    int
	// HeartbeatInterval is the silence after which the engine gets a PING; negative: never. HeartbeatTimeout is how
	// long the engine may take to answer; after it the connection is closed.
	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	// MaxMessage is the size of the largest message that is accepted, in bytes, over all its frames.
	MaxMessage int
	// MaxStreams bounds the number of streams of engines that connect to [Config.Listen], and the number of their
	// connections. A topic counts as a stream once the feed has found its holder: the rank of a worker in the fleet.
	// One connection has at most 256 streams.
	MaxStreams int
	// BackoffMin and BackoffMax are the first and the longest pause between two attempts to connect, plus or minus 50
	// %.
	BackoffMin time.Duration
	BackoffMax time.Duration
	// Dial connects to an engine, and Listen opens the endpoint that engines connect to; nil means package net. The end of
	// Dial's context ends the attempt, not the connection.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(network, address string) (net.Listener, error)
}

// DefaultStreamConfig returns a StreamConfig with each default in its field. It means the same as StreamConfig{}.
func DefaultStreamConfig() StreamConfig {
	return StreamConfig{
		// A vLLM publisher looks for replay requests every 100 ms when idle, and between batches when busy.
		ReplayTimeout: 3 * time.Second,
		// Half a second is long compared with the microseconds between two messages of a replay, and short if twenty replays
		// are needed.
		ReplayPause: 500 * time.Millisecond,
		// If a replay exceeds the send limit of the engine's ROUTER socket, the end of the replay is lost, and the next
		// replay brings more. If 70 % of a replay's messages are lost, one of twenty tries brings a given missing message
		// with more than 99.9 % probability (0.7^20 < 0.1 %).
		ReplayTries: 20,
		ReplayTime:  20 * time.Second,
		// An engine keeps 10,000 messages. Their replays take seconds, even if most of each replay is lost. In a longer
		// recovery the engine sends slowly on purpose, or publishes faster than its replay socket repeats.
		RecoveryTime: time.Minute,
		Verify:       10 * time.Second,
		// vLLM keeps 10,000 batches; a batch is some kilobytes.
		PendingMessages:   20_000,
		PendingBytes:      64 << 20,
		HeartbeatInterval: 5 * time.Second,
		HeartbeatTimeout:  10 * time.Second,
		// The event of a prompt of 1 M tokens that is stored in one step takes some 5 MB.
		MaxMessage: 64 << 20,
		MaxStreams: 4096,
		// libzmq's reconnect interval is 100 ms. With a longest pause of 2 s, a fleet that returns is found soon, and a fleet
		// that is away costs few attempts.
		BackoffMin: 100 * time.Millisecond,
		BackoffMax: 2 * time.Second,
	}
}

func (c StreamConfig) withDefaults() StreamConfig {
	d := DefaultStreamConfig()
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
func (c StreamConfig) socket() zmtp.Config {
	return zmtp.Config{
		HeartbeatInterval: c.HeartbeatInterval,
		HeartbeatTimeout:  c.HeartbeatTimeout,
		MaxFrame:          c.MaxMessage,
		MaxParts:          8,
		MaxPeers:          c.MaxStreams,
		BackoffMin:        c.BackoffMin,
		BackoffMax:        c.BackoffMax,
		Dial:              c.Dial,
		Listen:            c.Listen,
	}
}
