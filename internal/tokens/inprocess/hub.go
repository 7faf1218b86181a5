package inprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/warmpath/warmpath/tokenizer"
)

// HubConfig says whether models' files may be downloaded, from which hub, and to which folder.
type HubConfig struct {
	// Allow permits downloads of tokenizers and chat templates. When the router starts, it downloads models with a path
	// hub:ORG/NAME. If tokens.discover is on, the router also downloads models that engines name. Allow is off by default:
	// then the router connects only to configured addresses.
	Allow bool `yaml:"allow"`
	// Endpoint is the hub's address. Empty means the environment variable HF_ENDPOINT, or https://huggingface.co if
	// HF_ENDPOINT is not set.
	Endpoint string `yaml:"endpoint"`
	// Cache is the folder of downloads. It has the layout of Hugging Face's tools, and can be shared with them. Empty
	// means the environment variable HF_HUB_CACHE. If HF_HUB_CACHE is not set, empty means the folder hub in HF_HOME. If
	// HF_HOME is not set either, empty means ~/.cache/huggingface/hub.
	Cache string `yaml:"cache"`
	// Token gives access to gated and private models. Its value comes from the environment variable HF_TOKEN.
	Token string `yaml:"-"`
	// Offline is true if only the cache is used. Its value comes from the environment variable HF_HUB_OFFLINE.
	Offline bool `yaml:"-"`
}

// HubEndpoint is the address of the public hub.
const HubEndpoint = "https://huggingface.co"

// hubPrefix is the beginning of the path of a model on the hub: hub:ORG/NAME or hub:ORG/NAME@REVISION.
const hubPrefix = "hub:"

// hubModel is a model on the hub, in one revision.
type hubModel struct{ name, revision string }

var (
	hubName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)
	hubRevision = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)
	hubCommit   = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	hubFile     = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$`) // such a name needs no escapes in a URL or a path
)

// parseHub reads a model's path. The second result is true if the path begins with hub:, so that it means a model on
// the hub.
func parseHub(text string) (m hubModel, is bool, err error) {
	rest, is := strings.CutPrefix(text, hubPrefix)
	if !is {
		return m, false, nil
	}
	name, revision, named := strings.Cut(rest, "@")
	if !named {
		revision = "main"
	}
	if !hubName.MatchString(name) || strings.Contains(name, "..") || !hubRevision.MatchString(revision) ||
		strings.Contains(revision, "..") {
		return m, true, fmt.Errorf("%q is not hub:ORG/NAME or hub:ORG/NAME@REVISION", text)
	}
	return hubModel{name, revision}, true, nil
}

// errNotAllowed is returned for a path that needs a download. The error says how to use the model without a download.
var errNotAllowed = errors.New("downloads are off: allow them with --allow-hub (in the file: hub: {allow: true}), " +
	"or fetch the model's tokenizer and chat template yourself and name their folder")

// Check returns an error if p's path cannot be used. allowed is true if downloads are allowed. Check reads no file of
// the model.
func (p Path) Check(allowed bool) error {
	_, is, err := parseHub(p.Path)
	switch {
	case err != nil:
		return err
	case !is:
		return p.checkFolder()
	case !allowed:
		return errNotAllowed
	}
	return nil
}

// checkFolder returns an error if p.Path is not a folder with a tokenizer. It does not read the tokenizer.
func (p Path) checkFolder() error {
	dir, err := folder(p.Path)
	if err != nil {
		return err
	}
	for _, pattern := range [...]string{"tokenizer.json", "tekken.json", "*.tiktoken"} {
		if names, err := fs.Glob(os.DirFS(dir), pattern); err == nil && len(names) > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s: %w: name the folder that has one; serve without a path looks for the files by itself", dir,
		tokenizer.ErrNoTokenizer)
}

// Hub downloads models' tokenizers and chat templates into a cache. Its methods must not be called concurrently.
type Hub struct {
	cfg    HubConfig
	log    *slog.Logger
	client *http.Client
	retry  time.Duration // wait before the second try of a file
	stall  time.Duration // if no byte comes for this time, the download is given up
	most   int64         // upper bound of a file's bytes
	inAll  int64         // upper bound of the bytes of all files of a model
}

// NewHub returns a Hub. cfg must have an endpoint and a cache.
func NewHub(cfg HubConfig, log *slog.Logger) *Hub {
	transport := http.DefaultTransport.(*http.Transport).Clone() // the copy also uses the system's proxy
	transport.ResponseHeaderTimeout = 30 * time.Second
	cfg.Endpoint = strings.TrimRight(cfg.Endpoint, "/")
	return &Hub{cfg: cfg, log: log, client: &http.Client{Transport: transport}, retry: time.Second, stall: time.Minute,
		most: maxHubFile, inAll: 4 * maxHubFile}
}

// Folders returns a copy of paths. In the copy, each path of a model on the hub is replaced by the folder of the
// model's files on this machine. Folders downloads files that are missing.
func (h *Hub) Folders(ctx context.Context, paths []Path) ([]Path, error) {
	out := make([]Path, 0, len(paths))
	var problems []error
	for _, p := range paths {
		said := p.Path
		m, is, err := parseHub(said)
		if is && err == nil {
			p.Path, err = h.folder(ctx, m)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("model path %s: %w", said, err))
		}
		out = append(out, p)
	}
	h.client.CloseIdleConnections()
	return out, errors.Join(problems...)
}

// folder returns the folder with the files of m's revision. If the hub cannot be reached, the folder has the files of
// an earlier download.
func (h *Hub) folder(ctx context.Context, m hubModel) (string, error) {
	if !h.cfg.Allow {
		return "", errNotAllowed
	}
	root := cacheFolder(h.cfg.Cache, m.name)
	if h.cfg.Offline {
		dir, ok := cached(root, m.revision)
		if !ok {
			return "", fmt.Errorf("HF_HUB_OFFLINE is set and %s has no %s: copy the model's folder here and name it", root,
				m.revision)
		}
		return dir, nil
	}
	listed, err := h.list(ctx, m)
	if errors.Is(err, errUnreachable) && ctx.Err() == nil {
		if dir, ok := cached(root, m.revision); ok {
			h.log.Warn("the hub cannot be reached: the model's files as downloaded before are used", "model", m.name, "folder",
				dir, "error", err)
			return dir, nil
		}
		return "", fmt.Errorf("%w; without a network, copy the model's folder here and name it", err)
	}
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "snapshots", listed.Commit)
	found, left := false, h.inAll
	for _, f := range listed.Files {
		if !wanted(f.Name) {
			continue
		}
		found = found || isTokenizer(f.Name)
		size, err := h.download(ctx, m, listed.Commit, f, dir)
		if err != nil {
			return "", err
		}
		if left -= size; left < 0 {
			return "", fmt.Errorf("the files of %s at %s have more than %d bytes", m.name, m.revision, h.inAll)
		}
	}
	if !found {
		return "", fmt.Errorf("%s at %s has no tokenizer.json, tekken.json or .tiktoken file: its ids cannot be made here",
			m.name, m.revision)
	}
	return dir, point(root, m.revision, listed.Commit)
}

// cached returns the snapshot of the last complete download of a revision.
func cached(root, revision string) (dir string, ok bool) {
	commit, err := os.ReadFile(filepath.Join(root, "refs", revision))
	if err != nil || !hubCommit.MatchString(strings.TrimSpace(string(commit))) {
		return "", false
	}
	dir = filepath.Join(root, "snapshots", strings.TrimSpace(string(commit)))
	_, err = os.Stat(dir)
	return dir, err == nil
}

// point records commit as the last complete download of revision.
func point(root, revision, commit string) error {
	to := filepath.Join(root, "refs", revision)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("note the model's revision: %w", err)
	}
	if err := os.WriteFile(to+".new", []byte(commit), 0o644); err != nil {
		return fmt.Errorf("note the model's revision: %w", err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		return fmt.Errorf("note the model's revision: %w", err)
	}
	return nil
}

// wanted reports whether the router uses a file of this name: a file of the tokenizer, of the templates or of the image
// processing. Weights are never downloaded.
func wanted(name string) bool {
	switch name {
	case "tokenizer_config.json", "chat_template.jinja", "chat_template.json", "config.json", "preprocessor_config.json",
		"processor_config.json":
		return true
	}
	template, err := path.Match("additional_chat_templates/*.jinja", name)
	return isTokenizer(name) || err == nil && template && filepath.IsLocal(name) && hubFile.MatchString(name)
}

func isTokenizer(name string) bool {
	rank, err := path.Match("*.tiktoken", name)
	return name == "tokenizer.json" || name == "tekken.json" || err == nil && rank && filepath.IsLocal(name) &&
		hubFile.MatchString(name)
}

// listing is the hub's listing of a model's revision.
type listing struct {
	Commit string      `json:"sha"`
	Files  []hubRemote `json:"siblings"`
}

// hubRemote is a file on the hub. If the listing lacks the size or a digest, the field has its zero value.
type hubRemote struct {
	Name string `json:"rfilename"`
	Size int64  `json:"size"`
	Git  string `json:"blobId"` // SHA-1 that git computes of the content
	LFS  *struct {
		SHA256 string `json:"sha256"`
	} `json:"lfs"`
}

// maxListing bounds the hub's listing in bytes. The listing of a model with a thousand files takes 300 KB.
const maxListing = 16 << 20

func (h *Hub) list(ctx context.Context, m hubModel) (*listing, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	resp, err := h.get(ctx, h.cfg.Endpoint+"/api/models/"+m.name+"/revision/"+m.revision+"?blobs=true", 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := h.statusError(resp.StatusCode, m); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxListing+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	var l listing
	if err := json.Unmarshal(data, &l); err != nil || !hubCommit.MatchString(l.Commit) {
		return nil, fmt.Errorf("%s does not answer as a hub does: check HF_ENDPOINT", h.cfg.Endpoint)
	}
	return &l, nil
}

// errUnreachable is returned if the hub gave no complete answer, or an answer that says nothing about the model (status
// 429 or 5xx).
var errUnreachable = errors.New("the hub cannot be reached")

func (h *Hub) get(ctx context.Context, url string, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the hub: %w", err)
	}
	req.Header.Set("User-Agent", "warmpath")
	req.Header.Set("Accept-Encoding", "identity") // the listing has the size and digest of the uncompressed file
	if h.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.cfg.Token) // after a redirect to another host, net/http drops this header
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return resp, nil
}

func (h *Hub) statusError(status int, m hubModel) error {
	switch {
	case status == http.StatusOK || status == http.StatusPartialContent:
		return nil
	case status == http.StatusUnauthorized && h.cfg.Token == "":
		return fmt.Errorf("the hub refuses access to %s (401): it is private or gated, or does not exist; set HF_TOKEN to "+
			"a token that may read it", m.name)
	case status == http.StatusUnauthorized:
		return fmt.Errorf("the hub refuses HF_TOKEN for %s (401): the token is wrong or has expired, or the model does not "+
			"exist", m.name)
	case status == http.StatusForbidden:
		return fmt.Errorf("the hub refuses access to %s (403): its licence must be accepted on the model's page, by the "+
			"owner of HF_TOKEN", m.name)
	case status == http.StatusNotFound:
		return fmt.Errorf("there is no %s at %s on %s (404)", m.name, m.revision, h.cfg.Endpoint)
	case status == http.StatusTooManyRequests || status >= 500:
		return fmt.Errorf("%w: status %d", errUnreachable, status)
	}
	return fmt.Errorf("ask the hub for %s: unexpected status %d", m.name, status)
}
