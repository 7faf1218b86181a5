package indexer

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
)

const (
	// maxBodies bounds the bodies that are read at the same time over HTTP, in bytes. The last keptForShort bytes are for
	// bodies of at most shortBody bytes, so that long ones do not lock out short ones.
	maxBodies    = 256 << 20
	keptForShort = 32 << 20
	// maxUnary bounds the calls with one answer over gRPC that are under way at the same time, in bytes: 204 calls.
	maxUnary = 256 << 20
	// maxStreams bounds the streams of gRPC: Ask, Changes and Dump. A stream is open for days, and most of the time no
	// message of it is being read. So streams take nothing from calls and bodies. All of them together take 640 MiB, if
	// each client sends the longest message at the same moment.
	maxStreams = 512
	// maxMessage bounds a message over gRPC in bytes: 262,144 token ids of four bytes, or the keys of two million tokens.
	// A longer question goes over HTTP, where its length is known before it is read. gRPC does not say how long a message
	// is before it has read the message, so each call counts as if it had the longest one: callBytes.
	maxMessage = 1 << 20
	// rpcWindow is how many bytes of one call a client may send before they are read: seven questions of 8,192 token ids.
	rpcWindow = 256 << 10
	// maxCalls bounds the calls of one connection, so that one client leaves room for another one. Further calls of the
	// client wait in the client.
	maxCalls = 100
	// callTimeout bounds a call with one answer, so that a message without an end takes no memory for long. It is that
	// of bodies over HTTP.
	callTimeout = time.Minute
	callBytes   = maxMessage + rpcWindow
)

// budget bounds the memory of bodies or calls of one kind. It is safe for concurrent use.
type budget struct {
	used  atomic.Int64
	most  int64
	spare int64 // of most: for bodies of at most shortBody bytes
}

// take reserves n bytes. If it returns true, the caller gives them back.
func (b *budget) take(n int64) bool {
	most := b.most
	if n > shortBody {
		most -= b.spare
	}
	for {
		used := b.used.Load()
		if used+n > most {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// Errors of a client that has to wait.
var (
	errBodies      = fmt.Errorf("%w: the bodies that are read now have %d MiB; try again, or send shorter questions", errBusy, maxBodies>>20)
	errConnections = fmt.Errorf("%w: too many connections are open; try again, or use one connection for all questions of a process", errBusy)
	errCalls       = fmt.Errorf("%w: %d calls over gRPC are under way; try again", errBusy, maxUnary/callBytes)
	errStreams     = fmt.Errorf("%w: %d streams over gRPC are open; use one stream for all questions of a process, or ask over HTTP", errBusy, maxStreams)
)

// rpcName is the service of indexer.proto, as it begins the path of a call.
const rpcName = "/warmpath.index.v1.Index/"

// admit is a tap.ServerInHandle: gRPC calls it with the header of a call, before it takes memory for a message. It
// refuses a call without the key or the certificate, and one for which there is no memory. The call counts until it
// ends.
func (r *rpc) admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	name, ours := strings.CutPrefix(call.FullMethodName, rpcName)
	many, known := r.methods[name]
	if !ours || !known {
		return ctx, nil // gRPC reads no message of a method that it does not know
	}
	room, err := &r.calls, errCalls
	if many {
		room, err = &r.streams, errStreams
	}
	if !r.allowedRPC(ctx, call) {
		err = errKey
	} else if room.take(callBytes) {
		err = nil
	}
	if err != nil {
		r.Telemetry.IndexAsked("grpc_"+name, httpStatus(err), 0)
		return ctx, rpcError(err)
	}
	end := func() {}
	if !many {
		ctx, end = context.WithTimeout(ctx, r.callLimit)
	}
	context.AfterFunc(ctx, func() { // gRPC ends ctx with the call
		end()
		room.give(callBytes)
	})
	return ctx, nil
}

// allowedRPC reports whether a call has the key, and the certificate that the listener may require.
func (s *Service) allowedRPC(ctx context.Context, call *tap.Info) bool {
	if s.Certificates != nil {
		from, _ := peer.FromContext(ctx)
		if from == nil {
			return false
		}
		if info, is := from.AuthInfo.(credentials.TLSInfo); !is || s.Certificates.MissingCertificate(&info.State) {
			return false
		}
	}
	if s.config.Key == "" {
		return true
	}
	given := call.Header.Get("authorization")
	return len(given) == 1 && s.allowed(given[0])
}
