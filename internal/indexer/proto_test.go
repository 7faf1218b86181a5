package indexer

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/block"
)

// The other halves of the messages, which only a client of another program has: it sends removals and requests for
// changes and dumps, and reads their answers. With them, tests write and read each message.

// message is a message of indexer.proto with both halves.
type message interface {
	encoder
	decoder
}

func (r *changeRequest) appendTo(dst []byte) []byte {
	return appendText(appendText(dst, 1, r.model), 2, r.group)
}

func (r *dumpRequest) appendTo(dst []byte) []byte {
	return appendText(appendText(appendText(dst, 1, r.model), 2, r.group), 3, r.worker)
}

func (r *removal) appendTo(dst []byte) []byte {
	dst = appendNumber(appendText(dst, 1, r.worker), 2, r.rankPlusOne)
	return appendText(appendText(dst, 3, r.group), 4, r.lora)
}

func (r *registered) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			r.listed = f.number != 0
		case 2:
			r.warning = f.text()
		}
		return nil
	})
}

func (a *answer) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			a.model = f.text()
		case 2:
			a.blockSize = int(f.small())
		case 3:
			a.tokens = int(f.small())
		case 4:
			var s score
			if err := s.decode(f.bytes); err != nil {
				return err
			}
			a.scores = append(a.scores, s)
		case 5:
			a.id = f.number
		case 6:
			a.code = f.small()
		case 7:
			a.problem = f.text()
		case 8:
			a.unknown = append(a.unknown, f.text())
		case 9:
			a.process = f.number
		}
		return nil
	})
}

func (s *score) decode(b []byte) error {
	return s.decodeNamed(b, func(name []byte) { s.worker = string(name) })
}

func (c *change) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			c.number = f.number
		case 2:
			c.kind = changeKind(min(f.small(), uint32(changeLost)))
		case 10:
			c.parent = block.Key(f.number)
		}
		return c.take(f, 3)
	})
}

func (r *run) decode(b []byte) error {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 8:
			r.parent = f.number
		case 12:
			r.problem = f.text()
		}
		return r.take(f, 1)
	})
}

// take reads a field that appendFields wrote, except for the parent.
func (b *rankBlocks) take(f *field, first protowire.Number) (err error) {
	n := int(f.small() & 0x7fffffff)
	switch f.id - first {
	case 0:
		b.model = f.text()
	case 1:
		b.group = f.text()
	case 2:
		b.worker = f.text()
	case 3:
		b.rank = n
	case 4:
		b.tier = f.text()
	case 5:
		b.cacheGroup = n
	case 6:
		b.depth = n
	case 8:
		b.keys, err = appendFixed(b.keys, f, maxKeys)
	case 9:
		b.hashes, err = appendFixed(b.hashes, f, maxKeys)
	case 10:
		b.blockSize = n
	}
	return err
}
