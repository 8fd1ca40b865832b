"""Thresholds of the devkit's `PDMScorerConfig`; docs/navsim_score.md names the official files."""

from __future__ import annotations

import math

# NC, section 6
STOPPED_SPEED = 0.05  # m/s, up to which the ego or an agent stands still
STATIC_OBJECT_SCORE = 0.5  # NC after hitting an object that is no vehicle, pedestrian or bicycle
BEHIND = math.radians(150)  # rad from the ego's heading, seen from the rear axle; also for TTC

# DDC, section 6
ONCOMING_STEPS = 11  # steps of 0.1 s over which meters off the route's lanes add up
SOME_ONCOMING = 2.0  # m, from which DDC is 0.5
MUCH_ONCOMING = 6.0  # m, from which DDC is 0

# EP, section 7
LEAST_PROGRESS = 5.0  # m that the expert or the candidate must exceed, else EP is 1

# TTC, section 7
LOOK_AHEAD_STEPS = (0, 3, 6, 9)  # steps of 0.1 s at constant velocity
TTC_STOPPED_SPEED = 0.005  # m/s, below which the ego cannot collide
AHEAD = math.radians(30)  # rad from the ego's heading, seen from the rear axle

# LK, section 7
OFF_CENTER = 0.5  # m between the ego's center and the centerline
OFF_CENTER_STEPS = 20  # consecutive steps of 0.1 s that violate

# HC, section 7: values must lie strictly between the bounds
COMFORT_BOUNDS = {
    "lon_acceleration": (-4.05, 2.40),  # m/s^2
    "lat_acceleration": (-4.89, 4.89),  # m/s^2
    "jerk": (-8.37, 8.37),  # m/s^3
    "lon_jerk": (-4.13, 4.13),  # m/s^3
    "yaw_acceleration": (-1.93, 1.93),  # rad/s^2
    "yaw_rate": (-0.95, 0.95),  # rad/s
}
HISTORY_DURATION = 1.5  # s before t = 0
FILTER_DECIMALS = 8  # digits after rounding of filtered signals

# EC, section 7: largest root mean squares of acceleration, jerk, yaw rate and yaw acceleration differences
EXTENDED_COMFORT_BOUNDS = (0.7, 0.5, 0.1, 0.1)  # m/s^2, m/s^3, rad/s, rad/s^2
FRAME_STEPS = 5  # steps of 0.1 s between two compared frames

# Two stages, section 9
FOLLOW_UP_VARIANCE = 0.1  # m^2, of the Gaussian kernel
LEAST_WEIGHT_SUM = 1e-8  # sum of kernel values, up to which all follow-ups count alike
