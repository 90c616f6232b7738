//go:build !race

#include "textflag.h"

// func Ahead(next *uint64)
TEXT ·Ahead(SB), NOSPLIT, $0-8
	MOVQ next+0(FP), BX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0b // PREFETCHW (BX)
	RET

// func Fetch(next *uint64)
TEXT ·Fetch(SB), NOSPLIT, $0-8
	MOVQ       next+0(FP), BX
	PREFETCHT0 (BX)
	RET
