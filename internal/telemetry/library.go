package telemetry

import (
	"log"
	"log/slog"
	"strings"
)

// TakeStandardLog makes the default logger of package log write to to, at the level debug, until restore is called.
// net/http uses that logger, and so would write to the standard error past every setting. It changes the whole process:
// only a command calls it.
func TakeStandardLog(to *slog.Logger) (restore func()) {
	out, flags, prefix := log.Writer(), log.Flags(), log.Prefix()
	log.SetOutput(library{to})
	log.SetFlags(0) // to has the time
	log.SetPrefix("")
	return func() {
		log.SetOutput(out)
		log.SetFlags(flags)
		log.SetPrefix(prefix)
	}
}

// library takes the lines of libraries.
type library struct{ log *slog.Logger }

// maxLibraryText bounds the text of a line of a library, in bytes.
const maxLibraryText = 300

// Write writes one line of a library. It leaves out the bytes of a peer, which net/http quotes in "Unsolicited response
// received on idle HTTP channel starting with …" (Transport.readLoop): a worker that repeats what it hears would put
// keys and prompts there. It never fails.
func (l library) Write(line []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(line)), " starting with ")
	l.log.Debug("a library reports", "text", text[:min(len(text), maxLibraryText)])
	return len(line), nil
}
