package bench

import "image/color"

// lineColor tells lines of a plot apart, also for readers who confuse red and
// green (Okabe and Ito, "Color Universal Design", 2008).
func lineColor(i int) color.Color {
	colors := []color.RGBA{
		{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255},
	}
	return colors[i%len(colors)]
}
