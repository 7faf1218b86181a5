package tenant

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Registry has the tenants in force. It is safe for concurrent use. A lookup takes no lock.
type Registry struct {
	mu      sync.Mutex // serialises Use
	current atomic.Pointer[snapshot]
	ledger  ledger
}

// Tenant is one tenant in force. Its settings do not change: a reload makes a new Tenant, which shares the state of the
// old one. It is safe for concurrent use.
type Tenant struct {
	Config
	// Label is the tenant's name in metrics: the name, or Other.
	Label string
	keyed bool                   // the tenant has keys
	cell  *atomic.Pointer[state] // nil inside until the first request; shared with the Tenants of other reloads
	owner *ledger
	salt  [sha256.Size]byte // the key of the tenant's cache salts; zero unless CacheSalt is SaltOwn
}

// Other is the label of the tenants without series of their own. Named is the number of tenants that have series of
// their own: the first ones of the list. Each tenant has about ten series, and a thousand series are no burden.
const (
	Other = "other"
	Named = 100
)

type digest = [sha256.Size]byte

// snapshot has the tenants of one configuration. It does not change.
type snapshot struct {
	tenants []*Tenant
	byName  map[string]*Tenant
	keys    []key          // ordered by digest
	byStart map[uint64]int // the first 8 bytes of a digest → the index of the first such key in keys
}

type key struct {
	digest digest
	tenant *Tenant
}

// NewRegistry returns a registry without tenants.
func NewRegistry() *Registry {
	r := &Registry{}
	r.current.Store(&snapshot{})
	return r
}

// Keyed reports whether the tenant has keys. Such a tenant has to prove its name.
func (t *Tenant) Keyed() bool { return t.keyed }

// Open reports whether there are no tenants: then everybody may use the gateway. A nil Registry is open.
func (r *Registry) Open() bool { return r == nil || len(r.current.Load().tenants) == 0 }

// Tenants returns all tenants in the order of the list. Callers must not change the slice.
func (r *Registry) Tenants() []*Tenant { return r.current.Load().tenants }

// ByName returns the tenant with this name, or nil.
func (r *Registry) ByName(name string) *Tenant { return r.current.Load().byName[name] }

// ByKey returns the tenant that has this API key, or nil.
//
// The time that ByKey takes does not help to guess a key. The digest of the presented key is looked up by its first 8
// bytes, and then compared in constant time. So the time may show that a digest begins like a stored one. But a key
// cannot be computed from its digest, and keys that are alike have different digests.
func (r *Registry) ByKey(presented string) *Tenant {
	s := r.current.Load()
	if len(s.keys) == 0 {
		return nil
	}
	d := sha256.Sum256([]byte(presented))
	at, ok := s.byStart[start(&d)]
	if !ok {
		return nil
	}
	for ; at < len(s.keys) && start(&s.keys[at].digest) == start(&d); at++ {
		if subtle.ConstantTimeCompare(s.keys[at].digest[:], d[:]) == 1 {
			return s.keys[at].tenant
		}
	}
	return nil
}

func start(d *digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

// Use puts the list in force. The list has passed Validate. A tenant that stays, by its name, keeps its counts, its
// buckets and its requests under way; its limits are the new ones. saltKey is the secret of cache salts.
func (r *Registry) Use(list []Config, saltKey []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	s := &snapshot{tenants: make([]*Tenant, 0, len(list)), byName: make(map[string]*Tenant, len(list))}
	for i, c := range list {
		t := &Tenant{Config: c, Label: Other, owner: &r.ledger}
		if i < Named {
			t.Label = c.Name
		}
		if was := old.byName[c.Name]; was != nil {
			t.cell = was.cell
		} else {
			t.cell = &atomic.Pointer[state]{}
		}
		if c.CacheSalt == SaltOwn {
			t.salt = saltOf(saltKey, c.Name)
		}
		for _, text := range c.KeysSHA256 {
			if d, err := digestOf(text); err == nil {
				t.keyed = true
				s.keys = append(s.keys, key{d, t})
			}
		}
		t.KeysSHA256 = nil // so that no answer, log or copy can show them
		s.tenants = append(s.tenants, t)
		s.byName[c.Name] = t
	}
	slices.SortFunc(s.keys, func(a, b key) int { return bytes.Compare(a.digest[:], b.digest[:]) })
	s.byStart = make(map[uint64]int, len(s.keys))
	for i := len(s.keys) - 1; i >= 0; i-- {
		s.byStart[start(&s.keys[i].digest)] = i
	}
	r.current.Store(s)
}

// state returns what the tenant has used. It is made at the tenant's first request, so tenants that never ask cost
// little memory.
func (t *Tenant) state() *state {
	if s := t.cell.Load(); s != nil {
		return s
	}
	t.cell.CompareAndSwap(nil, &state{})
	return t.cell.Load()
}

// Validate returns all problems of a list, each beginning with path[i] and the key. where names an entry of the list.
func Validate(list []Config, where func(i int) string) (problems []error) {
	names, keys := make(map[string]int, len(list)), make(map[digest]int, len(list))
	for i := range list {
		c := &list[i]
		if err := c.Validate(); err != nil {
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				problems = append(problems, fmt.Errorf("%s.%w", where(i), e))
			}
		}
		if first, twice := names[c.Name]; twice && c.Name != "" {
			problems = append(problems, fmt.Errorf("%s.name: %q is also the name of %s", where(i), c.Name, where(first)))
		}
		names[c.Name] = i
		for k, text := range c.KeysSHA256 {
			d, err := digestOf(text)
			if err != nil {
				continue
			}
			if first, twice := keys[d]; twice {
				problems = append(problems, fmt.Errorf("%s.keys_sha256[%d]: %s has the same key", where(i), k, where(first)))
			}
			keys[d] = i
		}
		if len(problems) > maxProblems {
			return append(problems, errors.New("further tenants were not checked"))
		}
	}
	return problems
}

// maxProblems bounds the problems of a list with 100,000 tenants.
const maxProblems = 20
