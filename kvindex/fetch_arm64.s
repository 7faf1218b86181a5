#include "textflag.h"

// func fetch(word *uint64)
TEXT ·fetch(SB), NOSPLIT, $0-8
	MOVD word+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET
