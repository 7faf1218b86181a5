package policy

import "github.com/warmpath/warmpath/fleet"

// ReasonsBy returns the reasons of a policy that does not decide by the match alone. The argument by says which
// candidate the policy takes, such as "the lowest predicted cost".
func ReasonsBy(by string) map[Branch]string {
	return map[Branch]string{
		BranchAffinity:    by + ", and no worker has a longer match",
		BranchMiss:        "no worker has a part of the prompt: " + by,
		missAtRisk:        allAtRisk + by,
		missUnknown:       ReasonUnknown + ": " + by,
		BranchFallback:    "the holder of the longest match cannot be used: " + by + " of the others",
		BranchSpill:       by + ", though another has a longer match",
		BranchNoTokens:    "tokens are not known: " + by,
		BranchMatchUnused: by + "; the policy does not look at matches",
	}
}

// byPicker says in words which candidate a picker takes.
var byPicker = map[string]string{
	"":                "the highest score",
	"best":            "the highest score",
	"max_score":       "the highest score",
	"power_of_two":    "the less loaded of two drawn at random",
	"random":          "drawn at random",
	"round_robin":     "its turn",
	"weighted_random": "drawn at random, more likely with a higher score",
}

// reasonsOf returns the reasons of s. If s has none, it returns the reasons that follow from the scorers and the picker
// of s. nil means the general reasons.
func reasonsOf(s *Spec) map[Branch]string {
	ranks := s.Picker == "" || s.Picker == "best"
	switch {
	case s.Reasons != nil || s.Chooser != nil || s.NeedsTarget:
		return s.Reasons
	case ranks && len(s.Scorers) == 1 && s.Scorers[0].Scorer == "match":
		return nil
	case ranks && len(s.Scorers) == 1 && s.Scorers[0].Scorer == "load":
		return ReasonsBy("the least load")
	case ranks && len(s.Scorers) == 1 && s.Scorers[0].Scorer == "requests":
		return ReasonsBy("the fewest requests")
	}
	return ReasonsBy(byPicker[s.Picker])
}

// ownRule has the reasons for a chooser that names neither the branch of a choice nor reasons.
var ownRule = ReasonsBy("the policy's own rule")

// reasonAmong returns the policy's words for a branch. c are the candidates of the choice. If the policy has words of
// its own for the branch, but none for the key of the choice, its words for the branch count.
func (p *Policy) reasonAmong(b Branch, c []Candidate) string {
	key := reasonKey(b, c)
	if why, ok := p.reasons[key]; ok {
		return why
	}
	if why, ok := p.reasons[b]; ok {
		return why
	}
	return key.Reason()
}

// reasonKey returns the key for a branch in a map of reasons. c are the candidates of the choice. For a miss, the key
// depends on whether any cache is known, and on whether a match was at risk.
func reasonKey(b Branch, c []Candidate) Branch {
	if b != BranchMiss || len(c) == 0 {
		return b
	}
	known := false
	for i := range c {
		if c[i].AtRisk > 0 && c[i].Kept() == 0 {
			return missAtRisk
		}
		known = known || c[i].Trust != fleet.TrustNone
	}
	if !known {
		return missUnknown
	}
	return b
}
