package replica

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
)

// A packet is the content of one NATS message: a header, records, and the signature if there is a key.
//
//	offset  bytes  content
//	     0      2  "wp"
//	     2      1  version
//	     3      1  flags
//	     4      8  id of the sender: a random number, made at the start of the process
//	    12      8  start of the sender, Unix nanoseconds
//	    20      8  id of the receiver; 0 is all
//	    28      8  number of the packet: packets to all are numbered from 1 on, and packets to one receiver, too
//	    36      8  digest of all requests under way at the sender after this packet, if the flag digested is set
//	    44         records
//	            16  HMAC-SHA-256 of all before it, truncated to 128 bits (RFC 2104, section 5)
//
// All numbers are little-endian. A change that older routers would misunderstand gets another version.
const (
	version      = 1
	headerBytes  = 44
	signedBytes  = 16
	flagSigned   = 1 << 0
	flagDigested = 1 << 1
	// packetBytes is the length at which a packet ends, and a further one begins. A NATS server takes 1 MB by default: see
	// checkPayload.
	packetBytes = 64 << 10
	// maxPacket bounds a packet that is read.
	maxPacket = packetBytes + maxRecord + headerBytes + signedBytes
)

// header is the header of a packet.
type header struct {
	from, started, to, number, digest uint64
	digested                          bool
}

// reason says why a packet or a record was dropped. It is a label of metrics.
type reason string

const (
	dropMalformed reason = "malformed" // the packet is no packet of this version's shape
	dropVersion   reason = "version"   // the packet is of another version
	dropUnsigned  reason = "unsigned"  // a key is set here, and the packet has no signature
	dropSignature reason = "signature" // the signature is wrong, or the packet is signed and no key is set here
	dropOld       reason = "old"       // a packet with this number or a later one was received before
	dropOwn       reason = "own"       // the packet is this router's own
	dropOther     reason = "other"     // the packet is for another router
	dropTooMany   reason = "too_many"  // there are more routers or requests than this router follows
	dropUnknown   reason = "unknown"   // a record of a kind that this version does not know: it is skipped
	dropQueue     reason = "queue"     // records were not sent, because too many waited
	dropAlone     reason = "alone"     // packets were not sent, because there was no connection
	dropMemory    reason = "memory"    // requests, or their keys, took too much memory here
	dropSlow      reason = "slow"      // messages were lost, because this router read them too slowly
)

// reasons has all reasons.
var reasons = []reason{dropMalformed, dropVersion, dropUnsigned, dropSignature, dropOld, dropOwn, dropOther, dropTooMany,
	dropUnknown, dropQueue, dropAlone, dropSlow, dropMemory}

// errDrop is an error whose text is the reason.
type errDrop reason

func (e errDrop) Error() string { return "the packet is dropped: " + string(e) }

// signer signs packets, and checks signatures. Without a key it does neither. It is not safe for concurrent use.
type signer struct{ mac hash.Hash }

// newSigner returns a signer for a group. The key of its signatures is derived from key and group, so that a packet of
// one group is not a packet of another group with the same key.
func newSigner(key, group string) signer {
	if key == "" {
		return signer{}
	}
	derive := hmac.New(sha256.New, []byte(key))
	derive.Write([]byte("warmpath sync " + group))
	return signer{hmac.New(sha256.New, derive.Sum(nil))}
}

// begin appends the header of a packet to to, which is empty.
func (h *header) begin(to []byte) []byte {
	flags := byte(0)
	if h.digested {
		flags |= flagDigested
	}
	to = append(to, 'w', 'p', version, flags)
	for _, n := range [...]uint64{h.from, h.started, h.to, h.number, h.digest} {
		to = binary.LittleEndian.AppendUint64(to, n)
	}
	return to
}

// sign completes a packet.
func (s *signer) sign(packet []byte) []byte {
	if s.mac == nil {
		return packet
	}
	packet[3] |= flagSigned
	s.mac.Reset()
	s.mac.Write(packet)
	var sum [sha256.Size]byte
	return append(packet, s.mac.Sum(sum[:0])[:signedBytes]...)
}

// open checks a packet and its signature, and returns its header and its records.
func (s *signer) open(packet []byte) (h header, records []byte, err error) {
	if len(packet) < headerBytes || len(packet) > maxPacket || packet[0] != 'w' || packet[1] != 'p' {
		return h, nil, errDrop(dropMalformed)
	}
	if packet[2] != version {
		return h, nil, errDrop(dropVersion)
	}
	signed := packet[3]&flagSigned != 0
	switch {
	case signed && s.mac == nil:
		return h, nil, errDrop(dropSignature)
	case !signed && s.mac != nil:
		return h, nil, errDrop(dropUnsigned)
	case signed && len(packet) < headerBytes+signedBytes:
		return h, nil, errDrop(dropMalformed)
	case signed:
		body, given := packet[:len(packet)-signedBytes], packet[len(packet)-signedBytes:]
		s.mac.Reset()
		s.mac.Write(body)
		var sum [sha256.Size]byte
		if !hmac.Equal(s.mac.Sum(sum[:0])[:signedBytes], given) {
			return h, nil, errDrop(dropSignature)
		}
		packet = body
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(packet[4+8*i:]) }
	h = header{from: at(0), started: at(1), to: at(2), number: at(3), digest: at(4), digested: packet[3]&flagDigested != 0}
	if h.from == 0 || h.number == 0 {
		return h, nil, errDrop(dropMalformed)
	}
	return h, packet[headerBytes:], nil
}

// reasonOf returns why a packet was dropped.
func reasonOf(err error) reason {
	var drop errDrop
	if errors.As(err, &drop) {
		return reason(drop)
	}
	return dropMalformed
}

// digestOf returns the part of a digest that stands for a request under way. A digest is the exclusive or of the parts
// of all requests, so that it can be kept up to date. The mixing is the finalizer of MurmurHash3 (Austin Appleby,
// public domain), with a constant for requests whose prefill has ended.
func digestOf(id uint64, prefilled bool) uint64 {
	if prefilled {
		id ^= 0x9e3779b97f4a7c15
	}
	id += 0x9e3779b97f4a7c15
	id = (id ^ id>>33) * 0xff51afd7ed558ccd
	id = (id ^ id>>33) * 0xc4ceb9fe1a85ec53
	return id ^ id>>33
}
