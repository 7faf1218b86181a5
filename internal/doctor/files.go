package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// searchTime bounds the search for models' files and the comparison with the engines. It takes some seconds.
const searchTime = 60 * time.Second

// compareFiles compares the ids that the router would make from models' files with the engines' ids: completions and
// chats, so that a difference of the tokenizer and of the template is found.
func compareFiles(ctx context.Context, o *Options, exams []*exam) (found []Finding) {
	exams = slices.DeleteFunc(slices.Clone(exams), func(e *exam) bool { return e.report == nil || !e.report.Facts.CanTokenize })
	if o.FilesOff || len(exams) == 0 {
		return nil
	}
	given, err := inprocess.Open(o.Models)
	if err != nil {
		return []Finding{{"", "token_files", Error, err.Error(), "folders with a tokenizer and a chat template", "correct --model-path or models"}}
	}
	known := fleet.New(fleet.Config{})
	asker := tokens.New(tokens.DefaultConfig(), exams[0].client)
	defer asker.Close()
	keys := map[string]string{}
	for _, e := range exams {
		keys[e.URL] = e.authorization()
		known.SetHealth(known.Put(e.URL, e.report.Facts), true, "")
	}
	finder := inprocess.NewFinder(inprocess.FinderParts{Fleet: known, Asker: asker, Given: given, Cache: o.Cache, Log: o.Log,
		Authorization: func(url string) string { return keys[url] }})
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	var wg sync.WaitGroup
	wg.Go(func() { _ = finder.Run(ctx) }) // ends with ctx; Run returns nil then
	defer wg.Wait()
	defer cancel()
	o.Progress("comparing token ids made from the models' files with the engines' ids")
	for _, status := range settled(ctx, finder, exams) {
		switch status.Source {
		case inprocess.FromGiven:
			found = append(found, compareGiven(ctx, finder, asker, status, exams)...)
		case inprocess.FromEngine, inprocess.Searching:
			f := Finding{"", "token_files", Note, fmt.Sprintf("%s: %s", status.Model, cmp.Or(status.Why, "the search for the model's files did not end")),
				"files from which the router makes the engine's ids itself", cmp.Or(status.Advice, "name the model's files: --model-path "+status.Model+"=DIR")}
			if strings.Contains(status.Why, "differ") {
				f.Severity = Warning
			}
			f.Worker = onlyWorker(status, exams)
			found = append(found, f)
		}
	}
	return found
}

// onlyWorker returns the URL of the worker whose ids the status is about, or "" if there are several.
func onlyWorker(s inprocess.Status, exams []*exam) (url string) {
	for _, e := range exams {
		if e.report.Facts.BaseModel() == s.Model && (s.Engine == "sglang") == (e.kind() == tokens.SGLang) {
			if url != "" {
				return ""
			}
			url = e.URL
		}
	}
	return url
}

// settled waits until the search has ended for every model, and returns its results.
func settled(ctx context.Context, f *inprocess.Finder, exams []*exam) []inprocess.Status {
	models := map[string]bool{}
	for _, e := range exams {
		models[e.report.Facts.BaseModel()+"\x00"+fmt.Sprint(e.kind())] = true
	}
	look := time.NewTicker(50 * time.Millisecond) // the Finder tells nobody about its progress
	defer look.Stop()
	for {
		all := f.Statuses()
		searching := slices.ContainsFunc(all, func(s inprocess.Status) bool { return s.Source == inprocess.Searching })
		if len(all) >= len(models) && !searching {
			return all
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return all
		}
	}
}

// compared are request bodies whose ids are compared, without the model: a text with digits, accents, an emoji and
// runs of spaces, and chats, whose ids also show the template.
var compared = []struct {
	what    string
	dialect api.Dialect
	body    map[string]any
}{
	{"a completion", api.OpenAICompletions, map[string]any{"prompt": "Hello,  world! 12345 — naïve façade 東京 🙂\n\n\tfunc main() {}"}},
	{"a chat", api.OpenAIChat, map[string]any{"messages": []map[string]string{{"role": "user", "content": "What is 17 + 25?"}}}},
	{"a chat with a system message and an answer", api.OpenAIChat, map[string]any{"messages": []map[string]string{
		{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."},
		{"role": "user", "content": "Another?"}}}},
}

// compareGiven compares the ids made from files that the operator named. The router does so with clients' prompts only.
func compareGiven(ctx context.Context, f *inprocess.Finder, asker *tokens.Source, s inprocess.Status, exams []*exam) (found []Finding) {
	for _, e := range exams {
		if e.report.Facts.BaseModel() != s.Model {
			continue
		}
		for _, c := range compared {
			body := maps.Clone(c.body)
			body["model"] = s.Model
			raw, err := json.Marshal(body)
			if err != nil {
				panic("bug: encode a prompt: " + err.Error())
			}
			var read api.Request
			if err := api.Read(c.dialect, raw, &read); err != nil {
				panic("bug: read a prompt: " + err.Error())
			}
			p := tokens.Prompt{Request: &read, Authorization: e.authorization(), Model: s.Model, Kind: e.kind()}
			ours, ok := f.Find(ctx, &p)
			w := tokens.Worker{URL: e.URL, Kind: e.kind(), Version: e.Version, Root: e.Root, MaxModelLen: e.MaxModelLen}
			theirs := asker.Ask(ctx, w, p)
			if !ok || theirs.Tokens == nil || slices.Equal(ours.Tokens, theirs.Tokens) {
				continue
			}
			found = append(found, Finding{e.URL, "token_files", Error,
				fmt.Sprintf("for %s the files in %s give other ids than the engine, from token %d on (%d ids, the engine has %d)", c.what, s.Folder,
					common(ours.Tokens, theirs.Tokens), len(ours.Tokens), len(theirs.Tokens)),
				"the engine's ids", tokens.DiffersAdvice(s.Model)})
			break
		}
	}
	return found
}
