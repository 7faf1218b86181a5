package proxy

// answerBody says how an answer's body is framed, and how much of it has come.
type answerBody struct {
	length  int64 // number of bytes still to come, if there is a Content-Length
	chunks  chunkReader
	framing framing
	over    bool // the end of the body has come
	spoiled bool // the connection cannot be used again, e.g. because bytes came after the end, or the worker closes it
}

type framing uint8

const (
	noBody framing = iota
	byLength
	byChunks
	byClose
	byStream // the end of an HTTP/2 stream, which shows whether the body is complete
)

func (b *answerBody) reusable() bool { return b.over && !b.spoiled && b.framing < byClose }

// decode decodes raw in place, and returns the number of decoded bytes at its beginning.
func (b *answerBody) decode(raw []byte) (n int, err error) {
	switch b.framing {
	case byLength:
		n = int(min(b.length, int64(len(raw))))
		b.length -= int64(n)
		b.over = b.length == 0
		b.spoiled = b.spoiled || n < len(raw)
		return n, nil
	case byChunks:
		n, used, err := b.chunks.decode(raw, raw)
		b.over = b.chunks.done()
		b.spoiled = b.spoiled || used < len(raw)
		return n, err
	case byClose, byStream:
		return len(raw), nil
	}
	b.over = true
	b.spoiled = b.spoiled || len(raw) > 0
	return 0, nil
}

// frame finds out how the body is framed.
func (x *exchange) frame(k *conn) {
	b := &x.body
	b.spoiled = b.spoiled || x.ans.close
	switch {
	case x.ans.noBody():
		b.over = true
		b.spoiled = b.spoiled || x.ans.chunked || x.ans.length > 0
	case k.shared != nil:
		b.framing = byStream
	case x.ans.chunked:
		b.framing = byChunks
	case x.ans.length >= 0:
		b.framing, b.length = byLength, x.ans.length
		b.over = b.length == 0
	default:
		b.framing = byClose
	}
}
