//go:build linux && !purego_off

#include "textflag.h"

// trampoline runs on the system stack with R0 = *Block (AAPCS64). Arguments 1 to 8 go
// to registers, 9 to 12 to the stack, 16-byte aligned.
TEXT trampoline<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $64, RSP
	STP  (R29, R30), 32(RSP)
	MOVD R19, 48(RSP)
	ADD  $32, RSP, R29
	MOVD R0, R19
	MOVD 72(R19), R9
	MOVD R9, 0(RSP)
	MOVD 80(R19), R9
	MOVD R9, 8(RSP)
	MOVD 88(R19), R9
	MOVD R9, 16(RSP)
	MOVD 96(R19), R9
	MOVD R9, 24(RSP)
	MOVD 8(R19), R0
	MOVD 16(R19), R1
	MOVD 24(R19), R2
	MOVD 32(R19), R3
	MOVD 40(R19), R4
	MOVD 48(R19), R5
	MOVD 56(R19), R6
	MOVD 64(R19), R7
	MOVD 0(R19), R9
	BL   (R9)
	MOVD R0, 104(R19)
	MOVD 48(RSP), R19
	LDP  32(RSP), (R29, R30)
	ADD  $64, RSP
	RET

DATA ·trampolineAddr(SB)/8, $trampoline<>(SB)
GLOBL ·trampolineAddr(SB), NOPTR, $8
