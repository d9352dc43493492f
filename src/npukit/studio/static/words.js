// The studio's words, in the languages it has.
import { EN } from "./words_en.js";
import { ZH } from "./words_zh.js";

export const WORDS = { en: EN, zh: ZH };
