package kvindextest_test

import (
	"testing"

	"github.com/warmpath/warmpath/kvindex/kvindextest"
)

func TestIndexAnswersAsTheReference(t *testing.T) {
	kvindextest.Model(t, kvindextest.Kvindex, kvindextest.Effort{Runs: 300, Steps: 120})
}
