//go:build !race

#include "go_asm.h"
#include "textflag.h"

// func enter(owned *atomic.Pointer[claim]) (late *claim, did bool)
//
// Nothing orders the store before the second look at owned but the fence of whoever has changed that.
TEXT ·enter(SB), NOSPLIT, $0-17
	MOVQ  owned+0(FP), BX
	MOVQ  (BX), CX
	MOVQ  $0, late+8(FP)
	TESTQ CX, CX
	JZ    no
	MOVQ  (TLS), AX
	CMPQ  AX, claim_owner(CX)
	JNE   no
	MOVQ  $1, claim_inside(CX)
	CMPQ  CX, (BX)
	JNE   lost
	MOVB  $1, did+16(FP)
	RET

lost:
	MOVQ $0, claim_inside(CX)
	MOVQ CX, late+8(FP)

no:
	MOVB $0, did+16(FP)
	RET

// func goroutine() uintptr
TEXT ·goroutine(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET
