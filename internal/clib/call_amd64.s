//go:build linux && !purego_off

#include "textflag.h"

// invoke makes the call of the Block at BX. Arguments 1 to 6 go to registers, 7 to 12
// to the stack, which is 16-byte aligned at the call (System V calling convention).
TEXT invoke<>(SB), NOSPLIT|NOFRAME, $0
	SUBQ $56, SP
	MOVUPS 56(BX), X0
	MOVUPS 72(BX), X1
	MOVUPS 88(BX), X2
	MOVUPS X0, 0(SP)
	MOVUPS X1, 16(SP)
	MOVUPS X2, 32(SP)
	MOVQ 8(BX), DI
	MOVQ 16(BX), SI
	MOVQ 24(BX), DX
	MOVQ 32(BX), CX
	MOVQ 40(BX), R8
	MOVQ 48(BX), R9
	MOVQ 0(BX), R11
	XORL AX, AX          // no vector registers, should the callee be variadic
	CALL R11
	MOVQ AX, 104(BX)
	ADDQ $56, SP
	RET

// blockTrampoline runs on the system stack with DI = *Block.
TEXT blockTrampoline<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	PUSHQ BX
	SUBQ  $8, SP
	MOVQ  DI, BX
	CALL  invoke<>(SB)
	ADDQ  $8, SP
	POPQ  BX
	POPQ  BP
	RET

// chainTrampoline runs on the system stack with DI = *Chain: Start at 0, Poll at 112,
// Flag at 224, Tries at 232.
TEXT chainTrampoline<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	PUSHQ BX
	PUSHQ R12
	PUSHQ R13
	SUBQ  $8, SP
	MOVQ  DI, R12
	MOVQ  DI, BX
	MOVQ  0(BX), AX
	TESTQ AX, AX
	JZ    started
	CALL  invoke<>(SB)
	MOVL  104(BX), AX
	TESTL AX, AX
	JNZ   done

started:
	LEAQ 112(R12), BX

again:
	MOVQ  232(R12), AX
	TESTQ AX, AX
	JZ    done
	DECQ  AX
	MOVQ  AX, 232(R12)
	CALL  invoke<>(SB)
	MOVL  104(BX), AX
	TESTL AX, AX
	JNZ   done
	MOVQ  224(R12), AX
	MOVL  (AX), AX
	TESTL AX, AX
	JZ    again

done:
	ADDQ $8, SP
	POPQ R13
	POPQ R12
	POPQ BX
	POPQ BP
	RET

DATA ·blockTrampolineAddr(SB)/8, $blockTrampoline<>(SB)
GLOBL ·blockTrampolineAddr(SB), NOPTR, $8
DATA ·chainTrampolineAddr(SB)/8, $chainTrampoline<>(SB)
GLOBL ·chainTrampolineAddr(SB), NOPTR, $8
