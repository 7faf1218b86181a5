#include "textflag.h"

// func fetch(word *uint64)
TEXT ·fetch(SB), NOSPLIT, $0-8
	MOVQ word+0(FP), AX
	PREFETCHT0 (AX)
	RET
