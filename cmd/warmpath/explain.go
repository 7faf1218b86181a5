package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/config"
)

// explainFlags say which router to ask, and for which request.
type explainFlags struct {
	admin, policy, path string
	tenant              string
	headers             []string
	json                bool
}

func newExplain() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "explain",
		Short: "Ask a running router where a request would go, and why",
		Long: `Ask a running router where a request would go, and why. Give the request's body (chat,
completion, message, response or /generate) on standard input:

  echo '{"model":"MODEL","messages":[{"role":"user","content":"hello"}]}' | warmpath explain
  warmpath explain --policy kv_aware,least_load < body.json

The answer lists every candidate: how much of the prompt it has, its load, the parts of its score,
and why it was chosen or not. With several policies all of them decide at the same moment. The
router sends nothing to an engine, except a question for token ids. If a policy can choose no
worker, the exit code is 1. The admin key is read from ` + config.EnvAdminKey + `.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return explain(c, &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.admin, "admin", "http://"+admin.DefaultConfig().Listen, "`URL` of the router's admin listener")
	flags.StringVar(&f.policy, "policy", "", "`NAME[,NAME…]` of policies to ask (default: the policy that would decide)")
	flags.StringVar(&f.path, "path", "", "`PATH` of the request, such as /v1/messages (default: the path that the body is for)")
	flags.StringVar(&f.tenant, "tenant", "", "`NAME` of the tenant whose request it is (default: no tenant's settings count)")
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "`'NAME: VALUE'` of a header that the client would send, such as a session; repeatable")
	flags.BoolVar(&f.json, "json", false, "print the answer as JSON instead of a table")
	return c
}

var errNoBody = errors.New(`there is no request on standard input: write its body to a file, warmpath explain < FILE,
or pipe it: echo '{"model":"MODEL","messages":[{"role":"user","content":"hello"}]}' | warmpath explain`)

// maxExplanation bounds the answer in bytes. One candidate takes about a kilobyte.
const maxExplanation = 256 << 20

func explain(c *cobra.Command, f *explainFlags) error {
	in := c.InOrStdin()
	if file, ok := in.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return usageError{errNoBody}
		}
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return usageError{errNoBody}
	}
	answer, err := f.ask(c.Context(), body)
	if err != nil {
		return err
	}
	var all admin.Explanations
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("read the answer of %s: %w", f.admin, err)
	}
	if all.Policies == nil { // for one policy, the answer is not a list but a single explanation
		var one admin.Explanation
		if err := json.Unmarshal(answer, &one); err != nil {
			return fmt.Errorf("read the answer of %s: %w", f.admin, err)
		}
		all.Policies = []*admin.Explanation{&one}
	}
	if f.json {
		_, err = c.OutOrStdout().Write(answer)
	} else {
		err = writeExplanations(c.OutOrStdout(), &all)
	}
	if err == nil && slices.ContainsFunc(all.Policies, func(e *admin.Explanation) bool { return e.Worker == "" && !e.Queued }) {
		err = errNoChoice
		if !slices.ContainsFunc(all.Policies, func(e *admin.Explanation) bool { return len(e.Candidates) > 0 }) {
			err = errNoCandidate
		}
	}
	return err
}

// These errors make the command explain exit with code 1, so that a script sees that no worker is chosen now.
var (
	errNoChoice    = errors.New("no worker can be chosen: WHY says the reason for each worker")
	errNoCandidate = errors.New("no worker can be chosen: the first lines say why")
)

// ask posts body to the admin listener and returns its answer. Errors say what to do next.
func (f *explainFlags) ask(ctx context.Context, body []byte) ([]byte, error) {
	base, err := url.Parse(f.admin)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, usageError{fmt.Errorf("--admin %s: give the admin listener's URL, such as http://127.0.0.1:9090", f.admin)}
	}
	base = base.JoinPath("/admin/explain")
	query := url.Values{}
	for name, value := range map[string]string{"policy": f.policy, "path": f.path, "tenant": f.tenant} {
		if value != "" {
			query.Set(name, value)
		}
	}
	base.RawQuery = query.Encode()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, usageError{fmt.Errorf("--header %q is not 'NAME: VALUE'", h)}
		}
		req.Header.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if key := config.AdminKey(); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("nothing listens at %s: start the router, or give its admin listener with --admin URL (the router's log names it)", f.admin)
	}
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return nil, fmt.Errorf("ask %s: %w; name the file with the certificate of its authority in the variable SSL_CERT_FILE", f.admin, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", f.admin, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxExplanation))
	// net/http's answer to a request without TLS. The connection may be reset before its text has come.
	if resp.StatusCode == http.StatusBadRequest && resp.ProtoMinor == 0 && base.Scheme == "http" {
		return nil, fmt.Errorf("%s speaks TLS: write --admin https://%s", f.admin, base.Host)
	}
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", f.admin, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, f.refused(resp, answer)
	}
	return answer, nil
}

// refused turns an answer that is not 200 into an error that says what to do.
func (f *explainFlags) refused(resp *http.Response, answer []byte) error {
	var refusal struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(answer, &refusal) // an answer that is not JSON has no message
	switch {
	case resp.StatusCode == http.StatusUnauthorized && config.AdminKey() != "":
		return fmt.Errorf("%s refuses the key in %s: set it to the key that the router was started with (the same variable, admin.key_file or admin.key)",
			f.admin, config.EnvAdminKey)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s needs the admin key: set %s", f.admin, config.EnvAdminKey)
	case resp.StatusCode == http.StatusNotFound && refusal.Error.Code == "unknown_url":
		return fmt.Errorf("%s is the clients' listener: give the admin listener with --admin URL (--admin-listen of serve, port 9090 by default)", f.admin)
	case refusal.Error.Message != "":
		return fmt.Errorf("%s", refusal.Error.Message)
	}
	return fmt.Errorf("%s answered %s: it is not a Warmpath admin listener", f.admin, resp.Status)
}
