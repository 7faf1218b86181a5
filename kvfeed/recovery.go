package kvfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/zmtp"
)

const (
	// overlap is how many messages before the expected message are requested again. Their content shows whether the stream
	// is still the same. One such message is enough. With sixteen, at least one probably arrives even if most of a replay
	// is lost.
	overlap = 16
	// steady is how many messages in a row, without a gap, show that a replay loses nothing. If such a replay begins later
	// than requested, the engine no longer has the earlier messages.
	steady = 8
	// A vote is evidence that the engine no longer has earlier messages. After enoughVotes they count as lost. A replay
	// with a steady run gives 3 votes. A complete replay with fewer than steady messages gives 1 vote. A complete
	// replay without any of the requested messages gives 3 votes on a reconnect. If 70 % of messages are lost on the
	// way, this decision is wrong less often than once in ten thousand times.
	enoughVotes, steadyVote, shortVote = 6, 3, 1
	// settleAfter is the time from a recovery to the first check after it. If messages came in this time, the stream is
	// not idle, and the check comes later. The check finds messages that were published between the replay and the
	// moment when the subscription took effect.
	settleAfter = time.Second
)

// errNothing means that a replay ended before its end marker.
var errNothing = errors.New("the replay was cut short")

// errUnproven means that replays ended without a message of the live stream.
var errUnproven = errors.New("the replay has none of the live messages (is it another engine's?)")

// recover requests a replay when messages are missing. It also requests replays regularly, to find out whether
// messages are missing. It returns when ctx ends.
func (s *sequence) recover(ctx context.Context) {
	verify := s.cfg.Verify
	if verify < 0 {
		verify = 1 << 62
	}
	timer := time.NewTimer(verify)
	defer timer.Stop()
	var checked uint64 // number of messages at the last tick of timer
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
			s.catchUp(ctx)
			timer.Reset(min(settleAfter, verify))
		case <-timer.C:
			n := s.stats.messages.Load()
			if n != checked { // the stream is not idle: after a loss, its next live message shows the gap
				checked = n
				timer.Reset(min(settleAfter, verify))
				continue
			}
			s.catchUp(ctx)
			checked = s.stats.messages.Load()
			timer.Reset(verify)
		}
	}
}

// catchUp requests replays until nothing is missing, or until it gives up.
func (s *sequence) catchUp(ctx context.Context) {
	var a attempt
	began := time.Now()
	for fruitless := 0; ctx.Err() == nil; {
		if !s.begin(&a) {
			return
		}
		err := s.ask(ctx, &a)
		done, gained, late := s.judge(&a, err)
		if done {
			return
		}
		if late {
			s.giveUp(a.epoch, fmt.Errorf("messages are still missing after %v of replays", s.cfg.RecoveryTime))
			return
		}
		if gained {
			fruitless, began = 0, time.Now()
			continue
		}
		fruitless++
		if fruitless >= s.cfg.ReplayTries || time.Since(began) > s.cfg.ReplayTime {
			s.giveUp(a.epoch, err)
			return
		}
		sleep(ctx, min(time.Duration(fruitless)*10*time.Millisecond, s.cfg.BackoffMax))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// attempt is one replay request and its result. The next attempt takes over the votes. sequence.mu guards the fields
// that change during the attempt.
type attempt struct {
	epoch    uint64 // number of the connection to which the attempt belongs
	from     uint64 // the first requested sequence number
	progress uint64 // value of sequence.progress before the attempt
	ended    bool   // the replay's end marker came
	check    bool   // no message was known to be missing: the attempt only finds out whether one is
	count    uint64 // number of replayed messages
	first    uint64 // the sequence number of the first replayed message
	last     uint64 // the sequence number of the last replayed message
	torn     bool   // a sequence number is missing between first and last

	votes   int    // votes that the engine has no message before votedAt
	votedAt uint64 // the sequence number with which the replay of the last vote began
}

// begin prepares an attempt. It returns false if there is no replay to request.
func (s *sequence) begin(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.connected || !s.canReplay() {
		return false
	}
	if a.epoch == 0 { // this is the recovery's first attempt
		s.recovering = time.Now()
	}
	if a.epoch != s.epoch || a.progress != s.progress {
		a.votes = 0 // the votes were about another state of the stream
	}
	from := s.next - min(s.next, overlap)
	if s.probe > 0 {
		from, s.probe = min(from, s.probe-1), 0
	}
	*a = attempt{epoch: s.epoch, from: from, progress: s.progress, votes: a.votes, votedAt: a.votedAt}
	a.check = s.verified && !s.wanted && !s.overflow && s.pending.len() == 0
	s.overflow = false // this replay has the messages for which there was no room
	return true
}

// ask sends the replay request, and passes the messages of the replay to replayed. Each request has its own connection,
// so that a late answer to an earlier request is not taken for the answer to this request. ask returns why the replay
// ended. It returns nil after the end marker, or if no more messages are needed.
func (s *sequence) ask(ctx context.Context, a *attempt) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	enough := func() { cancel(nil) }
	s.mu.Lock()
	s.abort = enough
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.abort = nil
		s.mu.Unlock()
	}()
	silence := time.AfterFunc(s.cfg.ReplayTimeout, func() {
		cancel(fmt.Errorf("replay from %s: %w: silent for %v", s.replay, errNothing, s.cfg.ReplayTimeout))
	})
	defer silence.Stop()
	socket, err := zmtp.New(zmtp.DEALER, s.replay, zmtp.Config{
		HandshakeTimeout: s.cfg.ReplayTimeout,
		Dial:             s.cfg.Dial,
		MaxFrame:         s.cfg.MaxMessage,
		MaxParts:         4,
		OnConnect: func(p *zmtp.Peer) {
			if a.check {
				s.stats.checks.Add(1)
			} else {
				s.stats.replays.Add(1)
			}
			if err := p.Send(nil, binary.BigEndian.AppendUint64(nil, a.from)); err != nil {
				cancel(err)
			}
		},
		OnMessage: func(_ *zmtp.Peer, parts [][]byte) {
			if ctx.Err() != nil { // the rest of the buffer is not needed
				return
			}
			silence.Reset(min(s.cfg.ReplayPause, s.cfg.ReplayTimeout))
			if s.replayed(a, parts) {
				cancel(nil)
			}
		},
		OnDisconnect: func(_ *zmtp.Peer, err error) { cancel(err) },
		OnFailure:    func(err error) { cancel(err) },
	})
	if err != nil {
		return err
	}
	if err := socket.Run(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// replayed takes one message of a replay. It returns true if no more messages are needed.
func (s *sequence) replayed(a *attempt, parts [][]byte) (enough bool) {
	seq, payload, end, err := parseReplay(parts)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	switch {
	case s.epoch != a.epoch || !s.connected || !s.canReplay() || s.overdue():
		return true
	case err != nil:
		s.stats.malformed.Add(1)
		return false
	case end:
		a.ended = true
		return true
	}
	if a.count == 0 {
		a.first = seq
	} else if seq != a.last+1 {
		a.torn = true
	}
	a.count++
	a.last = seq
	if seq < s.next {
		return s.reviewed(seq, payload)
	}
	if s.verified && seq == s.next {
		s.stats.replayed.Add(1)
		s.progress++
		s.deliver(seq, payload, false)
		s.drain()
		return s.wanted && s.linked()
	}
	return s.early(a, seq, payload)
}

// reviewed takes a replayed message whose sequence number is below the expected one: a message with this number was
// handed to the handler before, or counts as lost. It compares the two messages.
func (s *sequence) reviewed(seq uint64, payload []byte) (enough bool) {
	switch s.seen.compare(seq, payload) {
	case same:
		if s.seen.live(seq) {
			s.agree()
		}
		s.verify()
		return s.wanted && s.linked()
	case different:
		s.contradicted(fmt.Sprintf("message %d is not the one that was seen", seq))
		return true
	}
	return false
}

// early takes a replayed message whose predecessors are missing. Either the predecessors were lost on the way, or the
// engine no longer has them.
func (s *sequence) early(a *attempt, seq uint64, payload []byte) (enough bool) {
	if a.first > s.next || !s.verified {
		if a.count < steady && !a.torn {
			// It is not yet known whether the predecessors were lost on the way. This message is dropped: the next replay
			// repeats it.
			return false
		}
		if a.count == steady && !a.torn {
			return s.vote(a, steadyVote)
		}
	}
	if !s.verified {
		return true
	}
	fresh, full := s.pending.put(seq, payload, false)
	if fresh {
		s.stats.replayed.Add(1)
		s.progress++
	}
	return full
}

// vote counts a replay that begins later than requested. After enoughVotes, the messages before its beginning count as
// lost.
func (s *sequence) vote(a *attempt, weight int) (enough bool) {
	if a.first < a.votedAt {
		a.votes = 0
	}
	a.votedAt = a.first
	if a.votes += weight; a.votes < enoughVotes {
		return true
	}
	a.votes = 0
	s.progress++
	if !s.verified {
		s.restart(fmt.Sprintf("the engine no longer has message %d, so that nothing shows whether it is the same", s.next-1))
		return true
	}
	s.lose(a.first)
	return true // the next replay brings the messages from a.first on
}

// judge evaluates an attempt that has ended. done: no further attempt is needed. gained: the attempt brought something
// new. late: there is no time for another attempt.
func (s *sequence) judge(a *attempt, err error) (done, gained, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if s.epoch != a.epoch || !s.connected {
		return true, false, false // this connection is over; the next one begins a new recovery
	}
	done, gained = s.weigh(a, err)
	return done, gained, s.overdue()
}

// weigh does the same as judge, without the time limit, for an attempt of the present connection.
func (s *sequence) weigh(a *attempt, err error) (done, gained bool) {
	gained = s.progress != a.progress
	ahead := a.count > 0 && a.last >= s.next // the replay showed that messages after the expected one exist
	atEnd := err == nil && a.ended && !gained && !ahead
	clean := s.verified && !s.overflow && s.pending.len() == 0
	switch {
	case clean && s.gaveUp && (s.agreed || !s.live) && s.relearned != s.epoch && err == nil && a.ended:
		s.relearned = s.epoch
		agreed := s.agreed
		s.restart("the replay answers again")
		s.agreed = agreed // the engine is the same
		return false, true
	case clean && atEnd && s.live && s.next <= s.lastLive:
		// The replay is complete and ends before the last live message of this connection. So it comes from another engine,
		// or from this engine after a restart and before its first message. The replay is of no use: all messages up to the
		// last live one count as lost.
		s.wanted, s.gaveUp = false, true
		s.lose(s.lastLive + 1)
		return true, gained
	case clean && (atEnd && !(s.unproven && s.live) || s.wanted && s.linked()):
		s.wanted = false
		s.announce()
		return true, gained
	case clean && !s.wanted && !gained && !ahead:
		return true, false // the check failed, but no message is known to be missing
	}
	if err == nil && a.ended && !gained {
		s.voteShort(a)
		gained = s.progress != a.progress
	}
	return false, gained
}

// voteShort votes on the evidence of a complete replay that is too short to have a steady run.
func (s *sequence) voteShort(a *attempt) {
	switch {
	case a.count == 0 && !s.verified:
		// The engine has none of the messages that were requested, although they were seen before.
		s.vote(a, steadyVote)
	case a.count > 0 && a.count < steady && !a.torn && (a.first > s.next || !s.verified):
		if a.first != a.votedAt {
			a.votes = 0
		}
		s.vote(a, shortVote)
	}
}

// giveUp gives the missing messages up as lost. If no message is known to be missing, the replay has not shown that the
// history is whole: then the history itself is given up, until the replay answers or message 0 comes.
func (s *sequence) giveUp(epoch uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if s.epoch != epoch || !s.connected {
		return
	}
	switch {
	case err != nil:
	case s.unproven:
		err = errUnproven
	default:
		err = errNothing
	}
	s.stats.failure.Store(&err)
	if !s.verified {
		s.restart(fmt.Sprintf("nothing shows whether the engine is the same: %v", err))
	}
	for {
		first, ok := s.pending.first()
		if !ok {
			break
		}
		s.gaveUp = true
		s.lose(first)
	}
	s.wanted = false
	if s.whole && !s.announced && !s.overdue() { // an overdue recovery has brought messages, and the next check continues it
		s.gaveUp = true
		s.lose(s.next)
	}
}
