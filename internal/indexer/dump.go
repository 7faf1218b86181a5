package indexer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/kvindex"
)

// dumpTries is how often the dump of a rank is tried. A dump fails if the rank's blocks change meanwhile.
const dumpTries = 20

// dumpPause is the time between two tries.
const dumpPause = 20 * time.Millisecond

// dumpRequest is DumpRequest of indexer.proto.
type dumpRequest struct {
	selection
	worker string
}

func (r *dumpRequest) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			r.model = f.text()
		case 2:
			r.group = f.text()
		case 3:
			r.worker = f.text()
		}
		return nil
	})
}

// run is a run of blocks of one chain that a rank has: Run of indexer.proto, and a line of GET /dump.
type run struct {
	rankBlocks
	parent  uint64 // the engine's hash of the block before the first one; 0: the first block begins a chain
	problem string // why the blocks of the rank cannot be dumped; "": they can
}

func (r *run) appendTo(dst []byte) []byte {
	return appendText(r.appendFields(dst, 1, r.parent), 12, r.problem)
}

// appendJSON appends the run as a line of GET /dump.
func (r *run) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"block_size":`...)
	dst = strconv.AppendInt(dst, int64(r.blockSize), 10)
	dst = r.appendName(dst)
	if r.problem != "" {
		dst = append(dst, `,"error":`...)
		return append(appendQuoted(dst, r.problem), "}\n"...)
	}
	dst = append(dst, `,"tier":"`...)
	dst = append(dst, r.tier...)
	dst = append(dst, `","cache_group":`...)
	dst = strconv.AppendInt(dst, int64(r.cacheGroup), 10)
	dst = append(dst, `,"depth":`...)
	dst = strconv.AppendInt(dst, int64(r.depth), 10)
	dst = append(dst, `,"parent_hash":`...)
	dst = strconv.AppendUint(dst, r.parent, 10)
	dst = append(dst, `,"keys":`...)
	dst = appendList(dst, r.keys)
	dst = append(dst, `,"block_hashes":`...)
	dst = appendList(dst, r.hashes)
	return append(dst, "}\n"...)
}

// dump calls emit with all blocks of the index, parents before children. If the blocks of a rank cannot be dumped, emit
// gets a run with the problem, and the dump goes on. Only one dump runs at a time, because it takes memory in
// proportion to a rank's blocks. The error wraps errBusy, errNoModel or errAbsent, or is emit's.
func (s *Service) dump(ctx context.Context, q *dumpRequest, emit func(*run) error) error {
	select {
	case s.dumping <- struct{}{}:
		defer func() { <-s.dumping }()
	default:
		return fmt.Errorf("%w: another dump is running; ask again when it has ended", errBusy)
	}
	snap := s.Fleet.Snapshot()
	if err := q.check(snap); err != nil {
		return err
	}
	found := q.worker == ""
	for _, w := range snap.Workers() {
		base := w.Facts.BaseModel()
		model, group := unpooled(base)
		if !q.has(model, group) || q.worker != "" && q.worker != bare(w.URL) {
			continue
		}
		found = true
		for _, h := range w.Holders {
			var out run
			out.place = place{bare(w.URL), snap.Rank(h)}
			out.model, out.group = model, group
			_, out.blockSize, _ = s.Router.Keying(base)
			if err := s.dumpRank(ctx, h, &out, emit); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("%w: %s", errAbsent, api.Quoted(q.worker))
	}
	return nil
}

// dumpRank calls emit with all blocks of one rank, which out names.
func (s *Service) dumpRank(ctx context.Context, h fleet.Holder, out *run, emit func(*run) error) error {
	if _, known := s.Router.HolderStats(h); !known {
		return nil // it has announced nothing
	}
	for tries := 1; ; tries++ {
		var failed error // of emit
		_, err := s.Router.Dump(h, func(held *kvindex.Held) error {
			if len(held.Keys) == 0 || held.Tier >= block.NumTiers {
				return nil // a cache group, or only names of blocks
			}
			out.tier, out.cacheGroup, out.depth, out.parent = held.Tier.String(), held.Group, held.Depth, held.Parent
			out.keys, out.hashes = held.Keys, held.Hashes
			failed = emit(out)
			return failed
		})
		if failed != nil {
			return failed
		}
		if errors.Is(err, kvindex.ErrChanged) && tries < dumpTries {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(dumpPause):
			}
			continue
		}
		if err != nil {
			named := rankBlocks{model: out.model, group: out.group, place: out.place, blockSize: out.blockSize}
			return emit(&run{rankBlocks: named, problem: err.Error()})
		}
		return ctx.Err()
	}
}
