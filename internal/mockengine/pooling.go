package mockengine

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/valyala/fastjson"
	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
)

// vectorLength is the length of an embedding.
const vectorLength = 8

// vector returns the embedding of a text: numbers between -1 and 1 that depend on nothing else.
func vector(text string) []float32 {
	random := splitmix(xxh3.HashString(text))
	out := make([]float32, vectorLength)
	for i := range out {
		out[i] = float32(int64(random.next())) / (1 << 63)
	}
	return out
}

// similarity returns a score of two texts, from 0 to 1.
func similarity(a, b string) float64 {
	return float64(xxh3.HashString(a+"\x00"+b)>>11) / (1 << 53)
}

// pooled reads the model and calls f, which returns the answer's own members and its number of prompt tokens.
func (l *life) pooled(w http.ResponseWriter, r *http.Request, id string, f func(in fields) (fields, int, error)) {
	l.withBody(w, r, func(body *fastjson.Value) {
		var g generation
		in, err := asMap(body)
		if err == nil {
			err = g.readModel(body, l)
		}
		if err != nil {
			l.refuseRequest(w, err)
			return
		}
		out, tokens, err := f(in)
		if err != nil {
			l.refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		l.requests.Add(1)
		out["id"], out["model"], out["created"] = id+l.newID(), g.model, time.Now().Unix()
		out["usage"] = fields{"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": nil}
		writeJSON(w, http.StatusOK, out)
	})
}

// texts reads a text or a list of texts. Lists of token ids stand for the text that they have.
func texts(v any, name string) (list []string, tokens int, err error) {
	items, isList := v.([]any)
	if text, is := v.(string); is {
		items = []any{text}
	} else if !isList || len(items) == 0 {
		return nil, 0, errors.New(name + ": field required, a text or a list")
	}
	if _, ids := items[0].(float64); ids {
		items = []any{items}
	}
	for _, item := range items {
		text, is := item.(string)
		if ids, isIDs := item.([]any); isIDs {
			text, is = string(encoded(ids)), true
			tokens += len(ids)
		} else {
			tokens += len(appendTokens([]block.Token{tokenBegin}, text))
		}
		if document, isObject := item.(map[string]any); isObject {
			text, is = document["text"].(string)
		}
		if !is {
			return nil, 0, errors.New(name + ": has an item that is no text")
		}
		list = append(list, text)
	}
	return list, tokens, nil
}

func (l *life) embeddings(w http.ResponseWriter, r *http.Request) {
	l.pooled(w, r, "embd-", func(in fields) (fields, int, error) {
		list, tokens, err := texts(in["input"], "input")
		data := []any{}
		for i, text := range list {
			var value any = vector(text)
			if in["encoding_format"] == "base64" {
				var raw []byte
				for _, x := range vector(text) {
					raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
				}
				value = base64.StdEncoding.EncodeToString(raw)
			}
			data = append(data, fields{"index": i, "object": "embedding", "embedding": value})
		}
		return fields{"object": "list", "data": data}, tokens, err
	})
}

func (l *life) rerank(w http.ResponseWriter, r *http.Request) {
	l.pooled(w, r, "rerank-", func(in fields) (fields, int, error) {
		query, _ := in["query"].(string)
		list, tokens, err := texts(in["documents"], "documents")
		results := []any{}
		for i, text := range list {
			results = append(results, fields{"index": i, "document": fields{"text": text}, "relevance_score": similarity(query, text)})
		}
		return fields{"results": results}, tokens, err
	})
}

func (l *life) score(w http.ResponseWriter, r *http.Request) {
	l.pooled(w, r, "score-", func(in fields) (fields, int, error) {
		one, _, err := texts(in["text_1"], "text_1")
		if err != nil {
			return nil, 0, err
		}
		two, tokens, err := texts(in["text_2"], "text_2")
		data := []any{}
		for i, text := range two {
			data = append(data, fields{"index": i, "object": "score", "score": similarity(one[min(i, len(one)-1)], text)})
		}
		return fields{"object": "list", "data": data}, tokens, err
	})
}

func (l *life) classify(w http.ResponseWriter, r *http.Request) {
	l.pooled(w, r, "classify-", func(in fields) (fields, int, error) {
		list, tokens, err := texts(in["input"], "input")
		data := []any{}
		for i, text := range list {
			p := similarity(text, "")
			label := "LABEL_0"
			if p < 0.5 {
				label = "LABEL_1"
			}
			data = append(data, fields{"index": i, "label": label, "probs": []float64{p, 1 - p}, "num_classes": 2})
		}
		return fields{"object": "list", "data": data}, tokens, err
	})
}
