//go:build !race

#include "textflag.h"

// Bytes of a page, and how far ahead of its copy a line is asked for.
#define PAGE 4096
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

// A line of the page that begins so many bytes on.
#define LINE(page) \
	PREFETCHT0 (page+AHEAD)(SI)   \
	MOVOU      (page+0)(SI), X0   \
	MOVOU      (page+16)(SI), X1  \
	MOVOU      (page+32)(SI), X2  \
	MOVOU      (page+48)(SI), X3  \
	MOVNTO     X0, (page+0)(DI)   \
	MOVNTO     X1, (page+16)(DI)  \
	MOVNTO     X2, (page+32)(DI)  \
	MOVNTO     X3, (page+48)(DI)

// Two lines of it, as wide as they are.
#define WIDE(page) \
	PREFETCHT0 (page+AHEAD)(SI)    \
	PREFETCHT0 (page+AHEAD+64)(SI) \
	VMOVDQU64  (page+0)(SI), Z0    \
	VMOVDQU64  (page+64)(SI), Z1   \
	VMOVNTDQ   Z0, (page+0)(DI)    \
	VMOVNTDQ   Z1, (page+64)(DI)

// Rows of four pages, so many bytes of each by turns by COPY; without rows the end.
#define ROWS(COPY, bytes) \
row:                   \
	TESTQ DX, DX          \
	JZ    done            \
	MOVQ  $(PAGE/bytes), CX \
lines:                 \
	COPY(0)               \
	COPY(PAGE)            \
	COPY(2*PAGE)          \
	COPY(3*PAGE)          \
	ADDQ $bytes, SI       \
	ADDQ $bytes, DI       \
	DECQ CX               \
	JNZ  lines            \
	ADDQ $(3*PAGE), SI    \
	ADDQ $(3*PAGE), DI    \
	DECQ DX               \
	JMP  row

// func streamRows(dst, src *byte, rows int)
TEXT ·streamRows(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ rows+16(FP), DX
	ROWS(LINE, 64)

done:
	SFENCE
	RET

// func streamWideRows(dst, src *byte, rows int)
TEXT ·streamWideRows(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ rows+16(FP), DX
	ROWS(WIDE, 128)

done:
	VZEROUPPER
	SFENCE
	RET
