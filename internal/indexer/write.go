package indexer

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
)

// appendJSON appends the answer to POST /query: the shape of Dynamo's standalone indexer. tenant says that the client
// asked as a client of Mooncake's conductor does: then the answer also has that shape, under the tenant's name.
func (a *answer) appendJSON(dst []byte, tenant string) []byte {
	slices.SortStableFunc(a.scores, func(x, y score) int {
		switch {
		case x.worker < y.worker:
			return -1
		case x.worker > y.worker:
			return 1
		}
		return x.rank - y.rank
	})
	dst = append(dst, `{"model_name":`...)
	dst = appendQuoted(dst, a.model)
	dst = append(dst, `,"routing_group":`...)
	dst = appendQuoted(dst, a.group)
	dst = append(dst, `,"block_size":`...)
	dst = strconv.AppendInt(dst, int64(a.blockSize), 10)
	if a.tokens > 0 {
		dst = append(dst, `,"tokens":`...)
		dst = strconv.AppendInt(dst, int64(a.tokens), 10)
	}
	dst = append(dst, `,"scores":{`...)
	for ranks := range a.workers() {
		dst = appendQuoted(dst, ranks[0].worker)
		dst = append(dst, ':')
		dst = appendByRank(dst, ranks)
		dst = append(dst, ',')
	}
	dst = append(uncomma(dst), `},"frequencies":[],"instances":{`...)
	for ranks := range a.workers() {
		best := bestOf(ranks)
		dst = appendQuoted(dst, best.worker)
		dst = append(dst, `:{"longest_matched":`...)
		dst = strconv.AppendInt(dst, int64(best.matched), 10)
		dst = append(dst, ',')
		dst = best.appendTiers(dst)
		dst = append(dst, `,"dp":`...)
		dst = appendByRank(dst, ranks)
		dst = append(dst, `,"ranks":{`...)
		for i := range ranks {
			dst = append(dst, '"')
			dst = strconv.AppendInt(dst, int64(ranks[i].rank), 10)
			dst = append(dst, `":{"matched":`...)
			dst = strconv.AppendInt(dst, int64(ranks[i].matched), 10)
			dst = append(dst, ',')
			dst = ranks[i].appendTiers(dst)
			dst = append(dst, "},"...)
		}
		dst = append(uncomma(dst), "}},"...)
	}
	dst = append(uncomma(dst), '}')
	if len(a.unknown) > 0 {
		dst = append(dst, `,"unknown":[`...)
		for _, name := range a.unknown {
			dst = append(appendQuoted(dst, name), ',')
		}
		dst = append(uncomma(dst), ']')
	}
	if tenant != "" {
		dst = append(dst, ',')
		dst = a.appendTenant(dst, tenant)
	}
	return append(dst, "}\n"...)
}

// appendTenant appends the answer in the shape of Mooncake's conductor.
func (a *answer) appendTenant(dst []byte, tenant string) []byte {
	dst = appendQuoted(dst, tenant)
	dst = append(dst, ":{"...)
	for ranks := range a.workers() {
		best := bestOf(ranks)
		dst = appendQuoted(dst, best.worker)
		dst = append(dst, `:{"longest_matched":`...)
		dst = strconv.AppendInt(dst, int64(best.matched), 10)
		for t, name := range [...]string{block.TierGPU: "GPU", block.TierCPU: "CPU", block.TierDisk: "DISK"} {
			dst = append(dst, `,"`...)
			dst = append(dst, name...)
			dst = append(dst, `":`...)
			dst = strconv.AppendInt(dst, int64(best.tier[t]), 10)
		}
		dst = append(dst, `,"DP":`...)
		dst = appendByRank(dst, ranks)
		dst = append(dst, "},"...)
	}
	return append(uncomma(dst), '}')
}

// workers yields the scores of each worker. The scores are sorted by worker.
func (a *answer) workers() func(yield func([]score) bool) {
	return func(yield func([]score) bool) {
		for from := 0; from < len(a.scores); {
			to := from + 1
			for to < len(a.scores) && a.scores[to].worker == a.scores[from].worker {
				to++
			}
			if !yield(a.scores[from:to]) {
				return
			}
			from = to
		}
	}
}

// bestOf returns the score with the longest match of a worker's ranks.
func bestOf(ranks []score) *score {
	best := &ranks[0]
	for i := range ranks {
		if ranks[i].matched > best.matched {
			best = &ranks[i]
		}
	}
	return best
}

// appendByRank appends the matched tokens of each rank.
func appendByRank(dst []byte, ranks []score) []byte {
	dst = append(dst, '{')
	for i := range ranks {
		dst = append(dst, '"')
		dst = strconv.AppendInt(dst, int64(ranks[i].rank), 10)
		dst = append(dst, `":`...)
		dst = strconv.AppendInt(dst, int64(ranks[i].matched), 10)
		dst = append(dst, ',')
	}
	return append(uncomma(dst), '}')
}

// appendTiers appends the tokens of each tier, and the trust.
func (s *score) appendTiers(dst []byte) []byte {
	for t, n := range s.tier {
		dst = append(dst, '"')
		dst = append(dst, block.Tier(t).String()...)
		dst = append(dst, `":`...)
		dst = strconv.AppendInt(dst, int64(n), 10)
		dst = append(dst, ',')
	}
	dst = append(dst, `"trust":"`...)
	dst = append(dst, s.trust.String()...)
	return append(dst, '"')
}

// uncomma removes a comma at the end.
func uncomma(dst []byte) []byte {
	if n := len(dst); n > 0 && dst[n-1] == ',' {
		return dst[:n-1]
	}
	return dst
}

// appendQuoted appends a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, `\u00`...)
			dst = append(dst, "0123456789abcdef"[r>>4], "0123456789abcdef"[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// appendList appends a JSON list of whole numbers.
func appendList[T ~uint64](dst []byte, list []T) []byte {
	dst = append(dst, '[')
	for _, v := range list {
		dst = strconv.AppendUint(dst, uint64(v), 10)
		dst = append(dst, ',')
	}
	return append(uncomma(dst), ']')
}
