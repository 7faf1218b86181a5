package kvfeed

import (
	"context"
	"net"
	"time"

	"github.com/warmpath/warmpath/internal/zmtp"
)

// StreamConfig are the settings of one stream. The zero value of a field means its value in [DefaultStreamConfig].
type StreamConfig struct {
	// ReplayTimeout is the silence after which a replay counts as ended without its end marker.
	ReplayTimeout time.Duration
	// ReplayPause is the same limit after the first message of a replay. An engine writes a replay without a pause, so a
	// pause means that the rest was lost, with the end marker.
	ReplayPause time.Duration
	// ReplayTries is the number of replays in a row without a new message after which the missing messages are given up
	// as lost.
	ReplayTries int
	// ReplayTime bounds the time of a recovery that brings nothing new, over all of its replays.
	ReplayTime time.Duration
	// RecoveryTime bounds the time of any recovery. After it, the missing messages are given up as lost.
	RecoveryTime time.Duration
	// Verify is the time between two checks of an idle stream. A check requests a replay of the last messages: it finds a
	// dropped last message, and a restart that was not seen. Negative: never.
	Verify time.Duration
	// PendingMessages and PendingBytes bound the messages that are kept while older ones are replayed. Live messages
	// beyond the bound are dropped and replayed later.
	PendingMessages int
	PendingBytes    int
	// HeartbeatInterval is the silence after which the engine gets a PING; negative: never. HeartbeatTimeout is how long
	// it may take to answer before the connection is closed.
	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	// MaxMessage is the largest message accepted, in bytes, over all its frames.
	MaxMessage int
	// MaxStreams bounds the streams of engines that connect to [Config.Listen].
	MaxStreams int
	// BackoffMin and BackoffMax are the first and the longest pause between two attempts to connect.
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
		// A vLLM publisher looks for replay requests every 100 ms when idle and between batches when busy.
		ReplayTimeout: 3 * time.Second,
		// Half a second is long compared with the microseconds between two messages of a replay, and short if twenty replays
		// are needed.
		ReplayPause: 500 * time.Millisecond,
		// A replay that exceeds its ROUTER's send limit loses its end, and the next one brings more. If 70 % of a replay's
		// messages are lost, twenty tries find a missing message with more than 99.9 % (0.7^20 < 0.1 %).
		ReplayTries: 20,
		ReplayTime:  20 * time.Second,
		// Replays of the 10,000 messages that an engine keeps take seconds, even if most of each replay is lost. In a longer
		// recovery the engine sends slowly on purpose, or publishes faster than its replay socket repeats.
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
		// libzmq's reconnect interval is 100 ms. With at most 2 s a fleet that returns is found soon, and one that is away
		// costs little.
		BackoffMin: 100 * time.Millisecond,
		BackoffMax: 2 * time.Second,
	}
}

// withDefaults fills the zero fields.
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
