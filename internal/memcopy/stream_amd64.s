//go:build !race

#include "textflag.h"

// How far ahead of its copy a line is asked for.
#define AHEAD 256

// func streamLines(dst, src *byte, lines int)
TEXT ·streamLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX

line:
	TESTQ  CX, CX
	JZ     done
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JMP    line

done:
	SFENCE
	RET

// A line of the part that begins so many bytes on.
#define LINE(part) \
	PREFETCHT0 (part+AHEAD)(SI)   \
	MOVOU      (part+0)(SI), X0   \
	MOVOU      (part+16)(SI), X1  \
	MOVOU      (part+32)(SI), X2  \
	MOVOU      (part+48)(SI), X3  \
	MOVNTO     X0, (part+0)(DI)   \
	MOVNTO     X1, (part+16)(DI)  \
	MOVNTO     X2, (part+32)(DI)  \
	MOVNTO     X3, (part+48)(DI)

// Two lines of it, as wide as they are.
#define WIDE(part) \
	PREFETCHT0 (part+AHEAD)(SI)    \
	PREFETCHT0 (part+AHEAD+64)(SI) \
	VMOVDQU64  (part+0)(SI), Z0    \
	VMOVDQU64  (part+64)(SI), Z1   \
	VMOVNTDQ   Z0, (part+0)(DI)    \
	VMOVNTDQ   Z1, (part+64)(DI)

// Rows in so many parts of partBytes, of each stepBytes at a time by COPIES; without rows the end.
#define ROWS(COPIES, parts, partBytes, stepBytes) \
row:                                \
	TESTQ DX, DX                       \
	JZ    done                         \
	MOVQ  $(partBytes/stepBytes), CX   \
step:                               \
	COPIES                             \
	ADDQ  $stepBytes, SI               \
	ADDQ  $stepBytes, DI               \
	DECQ  CX                           \
	JNZ   step                         \
	ADDQ  $((parts-1)*partBytes), SI   \
	ADDQ  $((parts-1)*partBytes), DI   \
	DECQ  DX                           \
	JMP   row

#define HALVES LINE(0) LINE(8192)
#define QUARTERS WIDE(0) WIDE(4096) WIDE(2*4096) WIDE(3*4096)
#define WHOLE WIDE(0)

// func streamHalves(dst, src *byte, rows int)
TEXT ·streamHalves(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ rows+16(FP), DX
	ROWS(HALVES, 2, 8192, 64)

done:
	SFENCE
	RET

// func streamWideQuarters(dst, src *byte, rows int)
TEXT ·streamWideQuarters(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ rows+16(FP), DX
	ROWS(QUARTERS, 4, 4096, 128)

done:
	VZEROUPPER
	SFENCE
	RET

// func streamWide(dst, src *byte, rows int)
TEXT ·streamWide(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ rows+16(FP), DX
	ROWS(WHOLE, 1, 16384, 128)

done:
	VZEROUPPER
	SFENCE
	RET

// func flush(mem *byte, lines int)
TEXT ·flush(SB), NOSPLIT, $0-16
	MOVQ mem+0(FP), SI
	MOVQ lines+8(FP), CX

line:
	CLFLUSH (SI)
	ADDQ    $64, SI
	DECQ    CX
	JNZ     line
	MFENCE
	RET
