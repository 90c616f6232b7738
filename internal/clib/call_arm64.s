//go:build linux && !purego_off

#include "textflag.h"

// invoke makes the call of the Block at R19. Arguments 1 to 8 go to registers, 9 to 12
// to the stack (AAPCS64).
TEXT invoke<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $48, RSP
	MOVD R30, 32(RSP)
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
	MOVD 32(RSP), R30
	ADD  $48, RSP
	RET

// blockTrampoline runs on the system stack with R0 = *Block.
TEXT blockTrampoline<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $32, RSP
	STP  (R29, R30), 0(RSP)
	MOVD R19, 16(RSP)
	MOVD RSP, R29
	MOVD R0, R19
	BL   invoke<>(SB)
	MOVD 16(RSP), R19
	LDP  0(RSP), (R29, R30)
	ADD  $32, RSP
	RET

// chainTrampoline runs on the system stack with R0 = *Chain: Start at 0, Poll at 112,
// Flag at 224, Tries at 232.
TEXT chainTrampoline<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $32, RSP
	STP  (R29, R30), 0(RSP)
	STP  (R19, R20), 16(RSP)
	MOVD RSP, R29
	MOVD R0, R20
	MOVD R0, R19
	MOVD 0(R19), R9
	CBZ  R9, started
	BL   invoke<>(SB)
	MOVW 104(R19), R9
	CBNZW R9, done

started:
	ADD $112, R20, R19

again:
	MOVD 232(R20), R9
	CBZ  R9, done
	SUB  $1, R9
	MOVD R9, 232(R20)
	BL   invoke<>(SB)
	MOVW 104(R19), R9
	CBNZW R9, done
	MOVD 224(R20), R9
	MOVW (R9), R9
	CBZW R9, again

done:
	LDP  16(RSP), (R19, R20)
	LDP  0(RSP), (R29, R30)
	ADD  $32, RSP
	RET

DATA ·blockTrampolineAddr(SB)/8, $blockTrampoline<>(SB)
GLOBL ·blockTrampolineAddr(SB), NOPTR, $8
DATA ·chainTrampolineAddr(SB)/8, $chainTrampoline<>(SB)
GLOBL ·chainTrampolineAddr(SB), NOPTR, $8
