package indexer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
)

const (
	// maxReading bounds the bodies that are read at the same time, over HTTP and gRPC together, in bytes.
	maxReading = 256 << 20
	// maxMessage bounds a message over gRPC in bytes: 262,144 token ids of four bytes, or the keys of two million tokens.
	// A longer question goes over HTTP, where its length is known before it is read. gRPC does not say how long a message
	// is before it has read the message, so each call counts as if it had the longest one.
	maxMessage = 1 << 20
	// rpcWindow is how many bytes of one call a client may send before they are read: seven questions of 8,192 token ids.
	rpcWindow = 256 << 10
	// maxCalls bounds the calls of one connection, so that one client leaves room for another one. Further calls of the
	// client wait in the client.
	maxCalls = 100
	// callTimeout bounds a call with one answer, so that a message without an end takes no memory for long. It is that
	// of bodies over HTTP.
	callTimeout = time.Minute
)

// reserve counts n bytes of a body that is read. The caller gives them back with s.reading, also after an error.
func (s *Service) reserve(n int64) error {
	if s.reading.Add(n) > maxReading {
		return fmt.Errorf("%w: the bodies that are read now have %d bytes; try again, or send shorter questions", errBusy, maxReading)
	}
	return nil
}

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
	var err error
	if !r.allowedRPC(ctx, call) {
		err = errKey
	} else if err = r.reserve(maxMessage + rpcWindow); err != nil {
		r.reading.Add(-maxMessage - rpcWindow)
	}
	if err != nil {
		r.Telemetry.IndexAsked("grpc_"+name, httpStatus(err), 0)
		return ctx, rpcError(err)
	}
	end := func() {}
	if !many {
		ctx, end = context.WithTimeout(ctx, callTimeout)
	}
	context.AfterFunc(ctx, func() { // gRPC ends ctx with the call
		end()
		r.reading.Add(-maxMessage - rpcWindow)
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
