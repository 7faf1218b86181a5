package indexer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// registration adds a worker, or ranks of a worker: RegisterRequest of indexer.proto.
type registration struct {
	worker    string
	models    []fleet.Model
	group     string
	engine    string
	version   string
	blockSize int
	sources   []fleet.EventSource
	ranks     int
	firstRank int
	lora      string        // the adapter among models that this call adds; not in the message
	lease     time.Duration // 0: the worker stays
	warning   string        // set by registry.register: a mistake that the client may have made; not in the message
}

// maxLease bounds a lease: a program that registers its workers less often gives none.
const maxLease = 24 * time.Hour

// leaseOf returns the lease of so many seconds, at most maxLease.
func leaseOf(seconds int) time.Duration {
	return time.Duration(min(seconds, int(maxLease/time.Second))) * time.Second
}

func (r *registration) appendTo(dst []byte) []byte {
	dst = appendText(dst, 1, r.worker)
	for _, m := range r.models {
		dst = appendInner(dst, 2, (*modelMessage)(&m))
	}
	dst = appendText(dst, 3, r.group)
	dst = appendText(dst, 4, r.engine)
	dst = appendText(dst, 5, r.version)
	dst = appendNumber(dst, 6, r.blockSize)
	for _, s := range r.sources {
		dst = appendInner(dst, 7, (*sourceMessage)(&s))
	}
	dst = appendNumber(dst, 8, r.ranks)
	dst = appendNumber(dst, 9, r.firstRank)
	return appendNumber(dst, 10, int(r.lease/time.Second))
}

func (r *registration) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		n := int(f.small() & 0x7fffffff)
		switch f.id {
		case 1:
			r.worker = f.text()
		case 2:
			var m fleet.Model
			if len(r.models) == maxModels {
				return over(maxModels+1, maxModels)
			}
			err := (*modelMessage)(&m).decode(f.bytes)
			r.models = append(r.models, m)
			return err
		case 3:
			r.group = f.text()
		case 4:
			r.engine = f.text()
		case 5:
			r.version = f.text()
		case 6:
			r.blockSize = n
		case 7:
			var s fleet.EventSource
			if len(r.sources) == fleet.MaxRanks {
				return over(fleet.MaxRanks+1, fleet.MaxRanks)
			}
			err := (*sourceMessage)(&s).decode(f.bytes)
			r.sources = append(r.sources, s)
			return err
		case 8:
			r.ranks = n
		case 9:
			r.firstRank = n
		case 10:
			r.lease = leaseOf(n)
		}
		return nil
	})
}

type modelMessage fleet.Model

func (m *modelMessage) appendTo(dst []byte) []byte {
	dst = appendText(dst, 1, m.ID)
	dst = appendText(dst, 2, m.Root)
	return appendText(dst, 3, m.Parent)
}

func (m *modelMessage) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			m.ID = f.text()
		case 2:
			m.Root = f.text()
		case 3:
			m.Parent = f.text()
		}
		return nil
	})
}

type sourceMessage fleet.EventSource

func (s *sourceMessage) appendTo(dst []byte) []byte {
	dst = appendNumber(dst, 1, s.Rank)
	dst = appendText(dst, 2, s.Endpoint)
	dst = appendText(dst, 3, s.Replay)
	return appendText(dst, 4, s.Topic)
}

func (s *sourceMessage) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			s.Rank = int(f.small() & 0x7fffffff)
		case 2:
			s.Endpoint = f.text()
		case 3:
			s.Replay = f.text()
		case 4:
			s.Topic = f.text()
		}
		return nil
	})
}

// registered is the answer to a registration: RegisterResponse of indexer.proto.
type registered struct {
	listed  bool
	warning string
}

func (r *registered) appendTo(dst []byte) []byte {
	if r.listed {
		dst = appendNumber(dst, 1, 1)
	}
	return appendText(dst, 2, r.warning)
}

// removal removes a worker, a rank or an adapter: UnregisterRequest of indexer.proto.
type removal struct {
	worker, group string
	model         string // is only checked, and is not in the message
	lora          string
	rankPlusOne   int
}

func (r *removal) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			r.worker = f.text()
		case 2:
			r.rankPlusOne = int(f.small() & 0x7fffffff)
		case 3:
			r.group = f.text()
		case 4:
			r.lora = f.text()
		}
		return nil
	})
}

// empty is a message without fields.
type empty struct{}

func (*empty) appendTo(dst []byte) []byte { return dst }
func (*empty) decode(b []byte) error      { return eachField(b, func(*field) error { return nil }) }

// listing is all workers: WorkersResponse of indexer.proto, and the answer to GET /workers.
type listing struct {
	workers  []listedWorker
	grpcPort int    // the service's port for gRPC; 0: it has none
	process  uint64 // a random number of the service's process; 0: the service is older than this field
}

// maxListed and maxListedRanks bound a list of workers that a router takes: a worker or rank takes two bytes there and
// up to a hundred times as much in memory. A service may list as many workers of its own as are registered.
const (
	maxListed      = 2 * maxRegistered
	maxListedRanks = 1 << 20
)

// listedWorker is a worker.
type listedWorker struct {
	worker          string
	model, group    string
	blockSize       int // of the model's index
	engineBlockSize int
	algorithm       string
	source          string
	ranks           []listedRank
}

// listedRank is a data-parallel rank of a worker.
type listedRank struct {
	rank     int
	trust    fleet.Trust
	why      string
	ahead    int
	endpoint string
}

// MarshalJSON returns the worker as GET /workers shows it: close to the list of Dynamo's standalone indexer.
func (w *listedWorker) MarshalJSON() ([]byte, error) {
	type rank struct {
		Trust string `json:"trust"`
		Why   string `json:"why,omitempty"`
		Ahead int    `json:"ahead,omitempty"`
	}
	out := struct {
		Worker          string            `json:"instance_id"`
		Model           string            `json:"model_name"`
		Group           string            `json:"routing_group"`
		BlockSize       int               `json:"block_size"`
		EngineBlockSize int               `json:"engine_block_size,omitempty"`
		Algorithm       string            `json:"algorithm,omitempty"`
		Source          string            `json:"source"`
		Endpoints       map[string]string `json:"endpoints"`
		Ranks           map[string]rank   `json:"ranks"`
	}{w.worker, w.model, w.group, w.blockSize, w.engineBlockSize, w.algorithm, w.source, map[string]string{}, map[string]rank{}}
	for _, r := range w.ranks {
		name := strconv.Itoa(r.rank)
		if r.endpoint != "" {
			out.Endpoints[name] = r.endpoint
		}
		out.Ranks[name] = rank{r.trust.String(), r.why, r.ahead}
	}
	return json.Marshal(out)
}

func (l *listing) appendTo(dst []byte) []byte {
	for i := range l.workers {
		dst = appendInner(dst, 1, &l.workers[i])
	}
	return appendHash(appendNumber(dst, 2, l.grpcPort), 3, l.process)
}

func (l *listing) decode(b []byte) error {
	ranks := 0
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			var w listedWorker
			if len(l.workers) == maxListed {
				return fmt.Errorf("the list has more than %d workers", maxListed)
			}
			err := w.decode(f.bytes)
			l.workers = append(l.workers, w)
			if ranks += len(w.ranks); ranks > maxListedRanks && err == nil {
				err = fmt.Errorf("the list has more than %d ranks", maxListedRanks)
			}
			return err
		case 2:
			l.grpcPort = int(f.small() & 0x7fffffff)
		case 3:
			l.process = f.number
		}
		return nil
	})
}

func (w *listedWorker) appendTo(dst []byte) []byte {
	dst = appendText(dst, 1, w.worker)
	dst = appendText(dst, 2, w.model)
	dst = appendText(dst, 3, w.group)
	dst = appendNumber(dst, 4, w.blockSize)
	dst = appendNumber(dst, 5, w.engineBlockSize)
	dst = appendText(dst, 6, w.algorithm)
	dst = appendText(dst, 7, w.source)
	for i := range w.ranks {
		dst = appendInner(dst, 8, &w.ranks[i])
	}
	return dst
}

func (w *listedWorker) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			w.worker = f.text()
		case 2:
			w.model = f.text()
		case 3:
			w.group = f.text()
		case 4:
			w.blockSize = int(f.small() & 0x7fffffff)
		case 5:
			w.engineBlockSize = int(f.small() & 0x7fffffff)
		case 6:
			w.algorithm = f.text()
		case 7:
			w.source = f.text()
		case 8:
			var r listedRank
			if len(w.ranks) == fleet.MaxRanks {
				return fmt.Errorf("a worker has more than %d ranks", fleet.MaxRanks)
			}
			err := r.decode(f.bytes)
			w.ranks = append(w.ranks, r)
			return err
		}
		return nil
	})
}

func (r *listedRank) appendTo(dst []byte) []byte {
	dst = appendNumber(dst, 1, r.rank)
	dst = appendNumber(dst, 2, r.trust)
	dst = appendText(dst, 3, r.why)
	dst = appendNumber(dst, 4, r.ahead)
	return appendText(dst, 5, r.endpoint)
}

func (r *listedRank) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			r.rank = int(f.small() & 0x7fffffff)
		case 2:
			r.trust = fleet.Trust(min(f.small(), uint32(fleet.TrustExact)))
		case 3:
			r.why = f.text()
		case 4:
			r.ahead = int(f.small() & 0x7fffffff)
		case 5:
			r.endpoint = f.text()
		}
		return nil
	})
}
