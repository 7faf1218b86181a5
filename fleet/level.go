package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ServiceLevel is a pair of limits that an answer should keep. An answer that exceeds one of the limits breaks the
// level.
type ServiceLevel struct {
	// FirstToken is the limit of the time from the request's arrival to the first token of its answer; > 0.
	FirstToken time.Duration `yaml:"first_token"`
	// PerToken is the limit of the mean time of each further token. 0 is no limit.
	PerToken time.Duration `yaml:"per_token"`
}

// MaxServiceLevels is the greatest number of service levels of one request. The cost of a decision grows with this
// number, and more than a strict, a usual and a loose level are hardly told apart.
const MaxServiceLevels = 4

// longestLevel is the largest time that a service level may have. A larger time limits nothing: answers end sooner.
const longestLevel = time.Hour

// DefaultServiceLevels returns two service levels that are usual for chats: a loose one and a strict one. Requests have
// these levels if nothing else is configured.
func DefaultServiceLevels() []ServiceLevel {
	return []ServiceLevel{
		{FirstToken: 5 * time.Second, PerToken: 100 * time.Millisecond},
		{FirstToken: 2 * time.Second, PerToken: 50 * time.Millisecond},
	}
}

// Kept reports whether an answer keeps l. first is the time from arrival to the first token, total is the time from
// arrival to the last token, and tokens is the number of tokens of the answer.
func (l ServiceLevel) Kept(first, total time.Duration, tokens int) bool {
	if first > l.FirstToken {
		return false
	}
	further := max(tokens-1, 0)
	return l.PerToken <= 0 || further == 0 || total-first <= time.Duration(further)*l.PerToken
}

// KeptWhole reports whether an answer that came in one piece keeps l. Its first token was not seen, so the time of both
// limits together counts. total is the time from arrival to the end, and tokens is the number of tokens of the answer.
// l must have a limit for further tokens: without it nothing is known about such an answer.
func (l ServiceLevel) KeptWhole(total time.Duration, tokens int) bool {
	return total <= l.FirstToken+time.Duration(max(tokens-1, 0))*l.PerToken
}

// String returns the form that [ParseServiceLevel] reads, such as "5s/100ms".
func (l ServiceLevel) String() string {
	if l.PerToken <= 0 {
		return l.FirstToken.String()
	}
	return l.FirstToken.String() + "/" + l.PerToken.String()
}

// Validate returns an error if a time of l is outside of its bounds.
func (l ServiceLevel) Validate() error {
	switch {
	case l.FirstToken <= 0:
		return fmt.Errorf("first_token: %v is not positive", l.FirstToken)
	case l.PerToken < 0:
		return fmt.Errorf("per_token: %v is negative; 0 is no limit", l.PerToken)
	case l.FirstToken > longestLevel || l.PerToken > longestLevel:
		return fmt.Errorf("%v is longer than %v", max(l.FirstToken, l.PerToken), longestLevel)
	}
	return nil
}

// ParseServiceLevel reads FIRST/TOKEN or FIRST: the limit for the first token and the limit for each further token,
// such as 5s/100ms.
func ParseServiceLevel(s string) (l ServiceLevel, err error) {
	first, token, both := strings.Cut(s, "/")
	l.FirstToken, err = time.ParseDuration(strings.TrimSpace(first))
	if err == nil && both {
		l.PerToken, err = time.ParseDuration(strings.TrimSpace(token))
	}
	if err == nil {
		err = l.Validate()
	}
	if err == nil && both && l.PerToken == 0 {
		err = errors.New("the second time is 0")
	}
	if err != nil {
		return ServiceLevel{}, fmt.Errorf("service level %.40q is not FIRST_TOKEN/PER_TOKEN or FIRST_TOKEN, such as 5s/100ms: %w", s, err)
	}
	return l, nil
}

// ParseServiceLevels reads service levels with commas between them, or "none". The list is not nil, also if it is
// empty.
func ParseServiceLevels(s string) ([]ServiceLevel, error) {
	list := []ServiceLevel{}
	if strings.TrimSpace(s) == "none" {
		return list, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		l, err := ParseServiceLevel(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		if list = append(list, l); len(list) > MaxServiceLevels {
			break // ValidateServiceLevels refuses the list; the rest need not be read
		}
	}
	return list, ValidateServiceLevels(list)
}

// ValidateServiceLevels returns an error if a list has a wrong level, the same level twice, or too many levels.
func ValidateServiceLevels(list []ServiceLevel) error {
	if len(list) > MaxServiceLevels {
		return fmt.Errorf("more than %d service levels", MaxServiceLevels)
	}
	for i, l := range list {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("service level %v: %w", l, err)
		}
		if slices.Contains(list[:i], l) {
			return fmt.Errorf("the service level %v twice", l)
		}
	}
	return nil
}
