package kvevent

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSequenceDistinguishesGapsDuplicatesAndRestarts(t *testing.T) {
	type call struct {
		does string // next, replayed, jump, reconnected, reset
		seq  uint64
		want Step
	}
	cases := []struct {
		name     string
		calls    []call
		expected uint64
	}{
		{"counts from 0", []call{{"next", 0, InOrder}, {"next", 1, InOrder}}, 2},
		{"a first message above 0 is a gap", []call{{"next", 7, Gap}}, 0},
		{"a gap stays until it is filled or given up", []call{
			{"next", 0, InOrder}, {"next", 3, Gap}, {"next", 4, Gap}, {"replayed", 1, InOrder}, {"replayed", 2, InOrder},
			{"replayed", 3, InOrder}, {"next", 3, Duplicate}, {"next", 4, InOrder}}, 5},
		{"given up, the stream goes on", []call{{"next", 7, Gap}, {"jump", 7, 0}, {"next", 7, InOrder},
			{"next", 8, InOrder}}, 9},
		{"a replay that begins earlier brings duplicates", []call{
			{"next", 0, InOrder}, {"next", 1, InOrder}, {"replayed", 0, Duplicate}, {"replayed", 1, Duplicate},
			{"replayed", 2, InOrder}}, 3},
		{"a replay that begins above what was asked is a gap", []call{{"replayed", 5, Gap}}, 0},
		{"live messages that a replay has brought are duplicates", []call{
			{"replayed", 0, InOrder}, {"replayed", 1, InOrder}, {"replayed", 2, InOrder},
			{"next", 1, Duplicate}, {"next", 2, Duplicate}, {"next", 3, InOrder}}, 4},
		{"a live number that goes back is a restart",
			[]call{{"next", 0, InOrder}, {"next", 1, InOrder}, {"next", 0, Behind}}, 2},
		{"the same live number again is a restart",
			[]call{{"next", 0, InOrder}, {"next", 0, Behind}, {"reset", 0, 0}, {"next", 0, InOrder}}, 1},
		{"a restart seen late is a gap once reset", []call{
			{"next", 0, InOrder}, {"next", 1, InOrder}, {"next", 2, InOrder}, {"next", 1, Behind}, {"reset", 0, 0},
			{"next", 1, Gap}}, 0},
		{"on a new connection everything known is a restart", []call{
			{"replayed", 0, InOrder}, {"replayed", 1, InOrder}, {"reconnected", 0, 0}, {"next", 1, Behind}}, 2},
		{"on a new connection the stream goes on", []call{
			{"next", 0, InOrder}, {"reconnected", 0, 0}, {"next", 1, InOrder}}, 2},
		{"on a new connection a replay may run ahead of the live stream", []call{
			{"next", 0, InOrder}, {"reconnected", 0, 0}, {"replayed", 0, Duplicate}, {"replayed", 1, InOrder},
			{"replayed", 2, InOrder}, {"next", 1, Duplicate}, {"next", 2, Duplicate}, {"next", 3, InOrder}}, 4},
		{"the end marker is no message", []call{{"next", 0, InOrder}, {"next", 1<<64 - 1, Gap}, {"next", 1, InOrder}}, 2},
		{"a jump never goes back", []call{{"next", 0, InOrder}, {"next", 1, InOrder}, {"jump", 1, 0}}, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var s Sequence
			for i, call := range c.calls {
				got := call.want
				switch call.does {
				case "next":
					got = s.Next(call.seq)
				case "replayed":
					got = s.Replayed(call.seq)
				case "jump":
					s.Jump(call.seq)
				case "reconnected":
					s.Reconnected()
				case "reset":
					s.Reset()
				}
				if got != call.want {
					t.Fatalf("call %d, %s(%d) = %v, want %v", i, call.does, call.seq, got, call.want)
				}
			}
			if s.Expected() != c.expected {
				t.Errorf("expects %d, want %d", s.Expected(), c.expected)
			}
		})
	}
}

// A publisher counts up, may restart, and loses messages; a replay fills gaps from its buffer. In every case each
// message is applied at most once and in order, and a restart is recognized as a restart.
func TestSequenceAppliesEachMessageOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Sequence
		var sent, applied uint64 // numbers of this life: next to send, next to apply
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // restart, which ends the connection, after at least one message was taken in
				if applied == 0 {
					continue
				}
				sent, applied = 0, 0
				s.Reconnected()
				if got := s.Next(0); got != Behind {
					t.Fatalf("restart: %v", got)
				}
				s.Reset()
			case 1: // lost on the way
				sent++
				continue
			case 2: // replay from what is expected
				for seq := s.Expected(); seq < sent; seq++ {
					if got := s.Replayed(seq); got != InOrder || seq != applied {
						t.Fatalf("replayed %d, applied %d: %v", seq, applied, got)
					}
					applied++
				}
				continue
			}
			got := s.Next(sent)
			switch {
			case sent == applied && got == InOrder:
				applied++
			case sent > applied && got == Gap:
			default:
				t.Fatalf("live %d with %d applied: %v", sent, applied, got)
			}
			sent++
		}
		if s.Expected() != applied {
			t.Fatalf("expects %d after %d were applied", s.Expected(), applied)
		}
	})
}
