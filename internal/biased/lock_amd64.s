//go:build !race

#include "go_asm.h"
#include "textflag.h"

// func lock(m *Mutex)
//
// Nothing orders the store before the second look at owned but the fence of whoever has changed that.
TEXT ·lock(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ  m+0(FP), BX
	MOVQ  Mutex_owned(BX), CX
	TESTQ CX, CX
	JZ    ordinary
	MOVQ  (TLS), AX
	CMPQ  AX, claim_owner(CX)
	JNE   ordinary
	MOVQ  $1, claim_inside(CX)
	CMPQ  CX, Mutex_owned(BX)
	JNE   lost
	RET

lost:
	MOVQ $0, claim_inside(CX)
	MOVQ CX, m+0(FP)
	JMP  ·lockLate(SB) // whose argument is where lock's was

ordinary:
	JMP ·lockOrdinary(SB)

// func goroutine() uintptr
TEXT ·goroutine(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET
