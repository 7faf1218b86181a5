package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/tokens"
)

// compareWorkers finds workers that serve the same model and differ.
func compareWorkers(exams []*exam) (found []Finding) {
	byModel := map[string][]*exam{}
	for _, e := range exams {
		if e.report != nil {
			byModel[e.report.Facts.BaseModel()] = append(byModel[e.report.Facts.BaseModel()], e)
		}
	}
	if len(byModel) > 1 {
		found = append(found, Finding{"", "same_model", Note, fmt.Sprintf("the workers serve different models: %s",
			strings.Join(slices.Sorted(maps.Keys(byModel)), ", ")), "one model, unless you want several",
			"nothing if you want several: each request goes to the workers of its model. If they are one model, start the engines with the same --served-model-name"})
	}
	for _, model := range slices.Sorted(maps.Keys(byModel)) {
		group := byModel[model]
		found = append(found, compareRoles(model, group)...)
		differ := func(check string, s Severity, what, fix string, of func(*exam) string) {
			seen := map[string][]string{}
			for _, e := range group {
				if value := of(e); value != "" {
					seen[value] = append(seen[value], e.URL)
				}
			}
			if len(seen) < 2 {
				return
			}
			var parts []string
			for _, value := range slices.Sorted(maps.Keys(seen)) {
				parts = append(parts, fmt.Sprintf("%s at %s", value, strings.Join(seen[value], ", ")))
			}
			found = append(found, Finding{"", check, s, fmt.Sprintf("workers of %s differ in %s: %s", model, what, strings.Join(parts, "; ")),
				"the same " + what, fix})
		}
		differ("same_model", Warning, "the origin of the model", "start all engines of one name with the same model and revision, or give them different names (--served-model-name)",
			func(e *exam) string { return e.Root })
		differ("same_block_size", Warning, "block size", "start all engines with the same --block-size (SGLang: --page-size)",
			func(e *exam) string { return positive(e.BlockSize) })
		differ("same_length", Warning, "maximum length", "start all engines with the same --max-model-len (SGLang: --context-length): a long request is refused by the shorter ones",
			func(e *exam) string { return positive(e.MaxModelLen) })
		differ("same_hash_chain", Warning, "hash algorithm or seed", "start all engines with the same PYTHONHASHSEED and --prefix-caching-hash-algo: "+
			"Warmpath works with different ones, but LMCache and offload tiers then share no block between these workers",
			func(e *exam) string {
				if e.kind() == tokens.SGLang { // SGLang has one algorithm, without a seed
					return ""
				}
				return e.HashChain
			})
		differ("same_version", Note, "engine and version", "nothing during an update; otherwise run one version", func(e *exam) string {
			if e.Version == "" {
				return ""
			}
			return e.Engine + " " + e.Version
		})
	}
	return found
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprint(n)
}
