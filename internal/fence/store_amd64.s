//go:build !race

#include "textflag.h"

// func StoreAhead(p *uint64, v uint64, next *uint64)
TEXT ·StoreAhead(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ next+16(FP), BX
	MOVQ CX, (AX)
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0b // PREFETCHW (BX)
	RET

// func Ahead(next *uint64)
TEXT ·Ahead(SB), NOSPLIT, $0-8
	MOVQ next+0(FP), BX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0b // PREFETCHW (BX)
	RET
