package indexer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// maxDepth is how deep a body may be nested. The tools of a chat are nested deepest.
const maxDepth = 200

// readQuery reads the body of POST /query and POST /query_by_hash into q. Names of fields are those of Dynamo's
// standalone indexer, of Mooncake's conductor, and of the OpenAI API for prompts. Unknown fields are skipped, because
// these programs send more than the service needs. A name that is close to a known one is an error: without the field,
// the figures would be those of another question.
func (q *question) readQuery(body []byte) error {
	s := jsonscan.New(body, maxDepth)
	if s.End() || s.Peek() != '{' {
		return errors.New("the body must be a JSON object")
	}
	r := queryReader{q: q, s: &s}
	for more := s.Open('{'); more; more = s.Next('}') {
		key, _ := s.Key()
		r.field(string(key))
	}
	if s.Err() == nil && !s.End() {
		s.Fail("there is something after the object")
	}
	if err := s.Err(); err != nil {
		return err
	}
	if r.messages && r.prompt {
		return errors.New("the question has messages and a prompt: send one of them")
	}
	known, like := questionFields, isLike
	if r.messages || r.prompt {
		known, like = ownFields, isLikeBeside
	}
	if err := closeTo(r.unknown, known, like); err != nil {
		return err
	}
	if r.messages {
		q.body, q.dialect = body, api.OpenAIChat
	}
	if r.prompt {
		q.body, q.dialect = body, api.OpenAICompletions
	}
	return nil
}

// queryReader reads the fields of one question.
type queryReader struct {
	q                *question
	s                *jsonscan.Scanner
	messages, prompt bool
	unknown          []string // the first names of fields that are not known
}

// errHashes means that a question has hashes of blocks that are not the service's keys.
var errHashes = errors.New("the hashes of Dynamo, of Mooncake and of engines are made in another way than this service's keys, so they match nothing; " +
	"send token_ids to /query, or keys that warmpath/block makes")

func (r *queryReader) field(key string) {
	q, s := r.q, r.s
	if s.Word("null") {
		return // as if the field were absent
	}
	switch key {
	case "token_ids", "tokens", "prompt_token_ids":
		r.once(key, len(q.tokens) == 0)
		q.tokens = r.numbers(key, q.tokens)
	case "keys":
		r.once(key, !q.hasKeys)
		q.hasKeys = true
		q.keys = r.keys(q.keys)
	case "block_hashes", "seq_hashes":
		s.Stop(fmt.Errorf("%s: %w", key, errHashes))
	case "model_name", "model", "modelname":
		r.same(key, &q.model)
	case "lora_name", "lora":
		r.same(key, &q.lora)
	case "tenant_id":
		r.same(key, &q.group)
		q.tenant = !slices.Contains(answerNames[:], q.group)
	case "routing_group", "group":
		r.same(key, &q.group)
	case "cache_salt":
		q.salt = r.text(key)
	case "extra_key":
		q.extra = r.text(key)
	case "algorithm":
		q.algorithm = r.text(key)
	case "block_size":
		q.blockSize = int(min(r.whole(key), block.MaxSize+1))
	case "instance_id":
		q.workers = append(q.workers, r.name(key))
	case "workers", "instances":
		for more := r.list(key, "names of workers"); more; more = s.Next(']') {
			if len(q.workers) == maxNames {
				s.Stop(over(maxNames+1, maxNames))
				return
			}
			q.workers = append(q.workers, r.name(key))
		}
	case "messages":
		r.messages = true
		s.Skip()
	case "prompt":
		r.prompt = true
		s.Skip()
	default:
		if len(r.unknown) < mostUnknown && len(key) <= longestName {
			r.unknown = append(r.unknown, key)
		}
		s.Skip()
	}
}

// answerNames are the names in an answer beside which a tenant's name may stand.
var answerNames = [...]string{"model_name", "routing_group", "block_size", "tokens", "scores", "frequencies", "instances", "unknown"}

// once stops the reading if a field, under any of its names, was there before.
func (r *queryReader) once(key string, first bool) {
	if !first {
		r.s.Stop(fmt.Errorf("%s: this fact is given twice, perhaps under another name", key))
	}
}

// same reads a text that may be given under several names.
func (r *queryReader) same(key string, to *string) {
	v := r.text(key)
	r.once(key, *to == "" || *to == v)
	*to = v
}

func (r *queryReader) text(key string) string {
	if r.s.Peek() != '"' {
		r.s.Stop(fmt.Errorf("%s must be a string", key))
		return ""
	}
	raw, escaped := r.s.Text()
	if escaped {
		raw, _ = jsonscan.Unescape(nil, raw)
	}
	v := string(raw)
	if err := named(key, v); err != nil {
		r.s.Stop(err)
	}
	return v
}

// name reads the id of a worker, which is a text or, at Dynamo, a number.
func (r *queryReader) name(key string) string {
	if jsonscan.IsNumber(r.s.Peek()) {
		return string(r.s.Number())
	}
	return r.text(key)
}

// whole reads a whole number that is not negative.
func (r *queryReader) whole(key string) uint64 {
	var raw []byte
	if jsonscan.IsNumber(r.s.Peek()) {
		raw = r.s.Number()
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		r.s.Stop(fmt.Errorf("%s must be a whole number of 0 or more", key))
	}
	return v
}

// list opens a list. more says that it has an element.
func (r *queryReader) list(key, of string) (more bool) {
	if r.s.Peek() != '[' {
		r.s.Stop(fmt.Errorf("%s must be a list of %s", key, of))
		return false
	}
	return r.s.Open('[')
}

// numbers reads token ids.
func (r *queryReader) numbers(key string, dst []block.Token) []block.Token {
	s := r.s
	for more := r.list(key, "whole numbers"); more; more = s.Next(']') {
		dst = s.AppendUint32s(dst, maxTokens)
		raw := r.element(key, len(dst))
		v, err := strconv.ParseUint(string(raw), 10, 32)
		switch {
		case s.Err() != nil:
		case errors.Is(err, strconv.ErrRange):
			s.Stop(fmt.Errorf("%s[%d]: %s is more than 4294967295", key, len(dst), api.Bounded(string(raw))))
		case err != nil:
			s.Stop(fmt.Errorf("%s[%d]: %s is not a whole number of 0 or more", key, len(dst), api.Bounded(string(raw))))
		case len(dst) >= maxTokens:
			s.Stop(over(maxTokens+1, maxTokens))
		default:
			dst = append(dst, block.Token(v))
		}
	}
	return dst
}

// element reads a number of a list.
func (r *queryReader) element(key string, at int) (raw []byte) {
	if !jsonscan.IsNumber(r.s.Peek()) {
		r.s.Stop(fmt.Errorf("%s[%d] is not a number", key, at))
		return nil
	}
	return r.s.Number()
}

// keys reads block keys: numbers from 0 to 2^64-1, or from -2^63 to 2^63-1 as signed languages write them.
func (r *queryReader) keys(dst []block.Key) []block.Key {
	s := r.s
	for more := r.list("keys", "whole numbers"); more; more = s.Next(']') {
		raw := r.element("keys", len(dst))
		if s.Err() != nil {
			return dst
		}
		v, err := strconv.ParseUint(string(raw), 10, 64)
		if err != nil {
			signed, bad := strconv.ParseInt(string(raw), 10, 64)
			v, err = uint64(signed), bad
		}
		switch {
		case err != nil:
			s.Stop(fmt.Errorf("keys[%d]: %s is not a whole number of 64 bits", len(dst), api.Bounded(string(raw))))
		case len(dst) >= maxKeys:
			s.Stop(over(maxKeys+1, maxKeys))
		default:
			dst = append(dst, block.Key(v))
		}
	}
	return dst
}

// workerName is the id of a worker, which is a text or, at Dynamo, a number.
type workerName string

// UnmarshalJSON reads the id.
func (n *workerName) UnmarshalJSON(b []byte) error {
	if jsonscan.IsNumber(b[0]) {
		*n = workerName(b)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New("instance_id must be a string or a number")
	}
	*n = workerName(s)
	return nil
}

// workerNames are the fields that say which worker of which group is registered or removed.
type workerNames struct {
	Named     workerName `json:"instance_id"`
	Worker    workerName `json:"worker"`
	URL       string     `json:"url"`
	Model     string     `json:"model_name"`
	ModelName string     `json:"modelname"`
	ModelID   string     `json:"model"`
	Tenant    string     `json:"tenant_id"`
	Group     string     `json:"routing_group"`
	LoRA      string     `json:"lora_name"`
}

// names returns the names, each of which may be given under several keys.
func (n *workerNames) names() (worker, model, group string, err error) {
	worker, err = oneOf("instance_id", string(n.Named), string(n.Worker), n.URL)
	if err == nil {
		model, err = oneOf("model_name", n.Model, n.ModelName, n.ModelID)
	}
	if err == nil {
		group, err = oneOf("tenant_id", n.Tenant, n.Group)
	}
	return worker, model, group, err
}

// registerBody is the body of POST /register: the fields of Dynamo's standalone indexer and of Mooncake's conductor,
// and those that a router sends. Other fields are ignored, unless misspelled finds them close to one of these.
type registerBody struct {
	workerNames
	Models    []registeredAs `json:"models"`
	Type      string         `json:"type"`
	Version   string         `json:"version"`
	BlockSize int            `json:"block_size"`

	Endpoint string           `json:"endpoint"`
	Replay   string           `json:"replay_endpoint"`
	Topic    string           `json:"topic"`
	Rank     *int             `json:"dp_rank"`
	Sources  []registeredFrom `json:"sources"`
	Ranks    int              `json:"dp_size"`
	First    int              `json:"dp_start"`
	Lease    int              `json:"lease_seconds"`
}

type registeredAs struct {
	ID     string `json:"id"`
	Root   string `json:"root"`
	Parent string `json:"parent"`
}

type registeredFrom struct {
	Rank     int    `json:"dp_rank"`
	Endpoint string `json:"endpoint"`
	Replay   string `json:"replay_endpoint"`
	Topic    string `json:"topic"`
}

// readRegistration reads the body of POST /register.
func readRegistration(body []byte) (*registration, error) {
	var b registerBody
	if err := decodeJSON(body, &b); err != nil {
		return nil, err
	}
	if err := misspelled(body, b); err != nil {
		return nil, err
	}
	worker, model, group, err := b.names()
	if err != nil {
		return nil, err
	}
	if b.BlockSize < 0 || b.Ranks < 0 || b.First < 0 || b.Lease < 0 || b.Rank != nil && *b.Rank < 0 || len(b.Models) > maxModels || len(b.Sources) > fleet.MaxRanks {
		return nil, fmt.Errorf("a number is negative, or there are more than %d models or %d sources", maxModels, fleet.MaxRanks)
	}
	r := &registration{worker: worker, group: group, engine: b.Type, version: b.Version, blockSize: b.BlockSize, ranks: b.Ranks, firstRank: b.First,
		lease: leaseOf(b.Lease)}
	if model != "" {
		r.models = append(r.models, fleet.Model{ID: model})
	}
	for _, m := range b.Models {
		if m.ID != model {
			r.models = append(r.models, registeredModel(m))
		}
	}
	if b.LoRA != "" && len(r.models) > 0 {
		r.lora = b.LoRA
		r.models = append(r.models, fleet.Model{ID: b.LoRA, Parent: r.models[0].ID})
	}
	if b.Endpoint != "" {
		rank := 0
		if b.Rank != nil {
			rank = *b.Rank
		}
		r.sources = append(r.sources, fleet.EventSource{Rank: rank, Endpoint: b.Endpoint, Replay: b.Replay, Topic: b.Topic})
	}
	for _, s := range b.Sources {
		if s.Rank < 0 {
			return nil, fmt.Errorf("dp_rank %d is negative", s.Rank)
		}
		r.sources = append(r.sources, fleet.EventSource{Rank: s.Rank, Endpoint: s.Endpoint, Replay: s.Replay, Topic: s.Topic})
	}
	if len(r.sources) == 0 && b.Ranks == 0 {
		return nil, errors.New("endpoint is missing: give the ZMQ endpoint of the worker's KV events, such as tcp://10.0.0.7:5557")
	}
	return r, nil
}

func registeredModel(m registeredAs) fleet.Model {
	return fleet.Model{ID: m.ID, Root: m.Root, Parent: m.Parent}
}

// removalBody is the body of POST /unregister.
type removalBody struct {
	workerNames
	Rank *int `json:"dp_rank"`
}

// readRemoval reads the body of POST /unregister.
func readRemoval(body []byte) (*removal, error) {
	var b removalBody
	if err := decodeJSON(body, &b); err != nil {
		return nil, err
	}
	if err := misspelled(body, b); err != nil {
		return nil, err
	}
	worker, model, group, err := b.names()
	if err != nil {
		return nil, err
	}
	r := &removal{worker: worker, model: model, group: group, lora: b.LoRA}
	if b.Rank != nil {
		if *b.Rank < 0 {
			return nil, fmt.Errorf("dp_rank %d is negative", *b.Rank)
		}
		r.rankPlusOne = *b.Rank + 1
	}
	if worker == "" {
		return nil, errors.New("instance_id is missing: name the worker")
	}
	return r, nil
}

// oneOf returns the value that is given under one of several names.
func oneOf(what string, values ...string) (out string, err error) {
	for _, v := range values {
		if v != "" && out != "" && v != out {
			return "", fmt.Errorf("%s is given under two names with different values", what)
		}
		if v != "" {
			out = v
		}
	}
	return out, nil
}

// decodeJSON reads one JSON object.
func decodeJSON(body []byte, to any) error {
	if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return errors.New("the body must be a JSON object")
	}
	if err := json.Unmarshal(body, to); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return fmt.Errorf("%s cannot be a %s", wrong.Field, wrong.Value)
		}
		return fmt.Errorf("the body is not valid JSON: %w", err)
	}
	return nil
}
