package zmtp

import (
	"bytes"
	"fmt"
)

// maxSubscriptions bounds the number of prefixes that one peer may subscribe to.
const maxSubscriptions = 1024

// subscriptions has the prefixes that one peer of a PUB socket subscribed to. If a peer subscribed to a prefix twice,
// the peer must cancel the prefix twice (RFC 29).
type subscriptions struct {
	counts   map[string]int
	prefixes [][]byte // the keys of counts, for matches
}

func (s *subscriptions) add(prefix []byte) error {
	if s.counts[string(prefix)] == 0 {
		if len(prefix) > maxCommand {
			return fmt.Errorf("subscription of %d bytes is over the limit of %d", len(prefix), maxCommand)
		}
		if len(s.prefixes) >= maxSubscriptions {
			return fmt.Errorf("more than %d subscriptions", maxSubscriptions)
		}
		s.prefixes = append(s.prefixes, bytes.Clone(prefix))
	}
	if s.counts == nil {
		s.counts = make(map[string]int)
	}
	s.counts[string(prefix)]++
	return nil
}

// cancel cancels one subscription to prefix. If the peer has no subscription to prefix, cancel does nothing.
func (s *subscriptions) cancel(prefix []byte) {
	n := s.counts[string(prefix)]
	if n > 1 {
		s.counts[string(prefix)] = n - 1
		return
	}
	if n == 0 {
		return
	}
	delete(s.counts, string(prefix))
	for i, p := range s.prefixes {
		if bytes.Equal(p, prefix) {
			last := len(s.prefixes) - 1
			s.prefixes[i] = s.prefixes[last]
			s.prefixes[last] = nil
			s.prefixes = s.prefixes[:last]
			return
		}
	}
}

// matches reports whether the peer subscribed to messages with this topic. The topic is a message's first frame.
func (s *subscriptions) matches(topic []byte) bool {
	for _, p := range s.prefixes {
		if bytes.HasPrefix(topic, p) {
			return true
		}
	}
	return false
}
