package main

import (
	"bufio"
	"io"
	"testing"
	"testing/fstest"

	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// A program can write a line, read its ids, and then write the next line.
func TestEachLineIsAnsweredBeforeTheNextIsRead(t *testing.T) {
	m, err := inprocess.Load(fstest.MapFS{"tokenizer.json": {Data: []byte(`{"version":"1.0","added_tokens":[],"normalizer":null,
		"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"[UNK]":0,"hello":1},"unk_token":"[UNK]"}}`)}})
	if err != nil {
		t.Fatal(err)
	}
	questions, ask := io.Pipe()
	answer, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- tokenizeLines(questions, answers, m, false) }()
	lines := bufio.NewScanner(answer)
	for _, c := range [][2]string{{`"hello"`, "[1]"}, {`"hello hello"`, "[1,1]"}} {
		if _, err := io.WriteString(ask, c[0]+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != c[1] {
			t.Errorf("%s: %q", c[0], lines.Text())
		}
	}
	_ = ask.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
