package telemetry

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
	"testing"
)

func TestLinesOfLibrariesAreShortAndHaveNoBytesOfAPeer(t *testing.T) {
	var out bytes.Buffer
	before := log.Writer()
	restore := TakeStandardLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer restore()
	log.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "HTTP/1.1 200 OK\r\nX: sk-secret", nil)
	if line := out.String(); !strings.HasSuffix(line, ` level=DEBUG msg="a library reports" text="Unsolicited response received on idle HTTP channel"`+"\n") {
		t.Errorf("the line is %s", line)
	}
	out.Reset()
	log.Printf("one\nlevel=ERROR %s", strings.Repeat("x", 10000))
	if line := out.String(); strings.Count(line, "\n") != 1 || len(line) > 2*maxLibraryText || !strings.Contains(line, `text="one\nlevel=ERROR xxx`) {
		t.Errorf("the line is %.500s", line)
	}
	if restore(); log.Writer() != before {
		t.Error("the default logger does not write to its own place again")
	}
}
